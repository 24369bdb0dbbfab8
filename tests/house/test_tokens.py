import unittest

import fixture  # noqa: F401  it makes house_parts importable
from house_parts import cfg
from house_parts.tokens import LIFETIME, LITERAL, WORD, tokenize


def words(source):
    return [token.text for token in tokenize(source) if token.kind == WORD]


class Tokens(unittest.TestCase):
    def test_comments_are_left_out_even_nested_ones(self):
        self.assertEqual(words("a // crate::x\n/// crate::y\n/* b /* c */ d */ e"), ["a", "e"])

    def test_strings_hide_their_content(self):
        source = r"""let a = "use crate::x; \" crate::y"; let b = b"crate::z"; c"""
        self.assertEqual(words(source), ["let", "a", "let", "b", "c"])

    def test_raw_strings_end_at_their_own_hashes(self):
        source = 'a r"\\" b r#"one "quoted" // no comment"# c br##"x "# y"## d'
        self.assertEqual(words(source), ["a", "b", "c", "d"])

    def test_a_raw_word_is_a_word(self):
        self.assertEqual(words("r#type r#match"), ["type", "match"])

    def test_lifetimes_are_not_chars(self):
        tokens = tokenize(
            r"fn f<'a>(x: &'a str, c: char) { 'outer: loop { x == 'a' || '\'' == '\u{1F600}' || b'\\' } }"
        )
        self.assertEqual([token.text for token in tokens if token.kind == LIFETIME], ["'a", "'a", "'outer"])
        literals = [token.text for token in tokens if token.kind == LITERAL]
        self.assertEqual(literals, ["'a'", r"'\''", r"'\u{1F600}'", r"b'\\'"])

    def test_lines_are_counted_through_strings_and_comments(self):
        tokens = tokenize('/* 1\n2 */ a "3\n\\\n4" b\n// 5\nc')
        self.assertEqual([(token.line, token.last_line) for token in tokens], [(2, 2), (2, 4), (4, 4), (6, 6)])


class TestCode(unittest.TestCase):
    def product(self, source):
        return " ".join(token.text for token in cfg.split(tokenize(source))[0])

    def test_test_items_are_taken_out_with_all_their_attributes(self):
        source = "a(); #[inline] #[cfg(test)] #[must_use] pub(crate) fn f() -> [u8; 2] { x } fn g() {}"
        self.assertEqual(self.product(source), "a ( ) ; fn g ( ) { }")

    def test_the_test_feature_counts_as_test(self):
        for condition in ['feature = "test-util"', 'any(test, feature = "test-util")', "all(unix, test)", "doctest"]:
            self.assertEqual(self.product(f"#[cfg({condition})] use a::{{b, c}}; mod d;"), "mod d ;", condition)

    def test_other_conditions_stay(self):
        for condition in ["not(test)", 'feature = "sqlite"', "any(test, unix)", 'not(feature = "test-util")']:
            self.assertIn("mod a ;", self.product(f"#[cfg({condition})] mod a;"), condition)

    def test_fields_statements_and_arms_are_taken_out_alone(self):
        self.assertEqual(
            self.product("struct A { #[cfg(test)] b: Map<u8, C>, d: E, #[cfg(test)] f: G }"), "struct A { d : E , }"
        )
        self.assertEqual(self.product("{ #[cfg(test)] let a = S { b: 1 }; c(); }"), "{ c ( ) ; }")
        self.assertEqual(self.product("match a { #[cfg(test)] B => { c } D => e, }"), "match a { D => e , }")
        self.assertEqual(self.product("#[cfg(test)] const A: &[u8] = &{ [1] }; fn b() {}"), "fn b ( ) { }")

    def test_an_inner_attribute_makes_the_whole_file_test_code(self):
        self.assertEqual(self.product("#![allow(dead_code)] #![cfg(test)] fn a() {}"), "")


if __name__ == "__main__":
    unittest.main()
