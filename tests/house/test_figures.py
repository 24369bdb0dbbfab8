import unittest

from fixture import RepositoryTest
from house_parts import crates, figures, report


class Figures(RepositoryTest):
    def measure(self, modules, others=None):
        self.crate(modules)
        self.write(others or {})
        self.figures = figures.measure(crates.find_crates(self.repository), self.repository)
        return self.figures["crates"][0]

    def test_lines_of_product_tests_and_measuring(self):
        row = self.measure(
            {
                "lib": '//! Doc\n\nmod a;\n#[cfg(feature = "test-util")]\npub mod conformance;\n',
                "a": 'fn f() {} // x\n\n/* y */\nconst S: &str = "\n\n";\n'
                "#[cfg(test)]\nmod tests {\n}\n#[cfg(test)]\nmod more;\n",
                "a/more": "mod deep;\n",
                "a/more/deep": "\n\n",
                "conformance": "mod inner;\n",
                "conformance/inner": "\n",
            },
            {
                "crates/toy/tests/it/main.rs": "\n\n\n",
                "crates/toy/benches/b.rs": "\n",
                "crates/toy/examples/e.rs": "\n",
            },
        )
        # lib.rs has 6 lines (the fixture ends it with an empty one), a.rs 11; of those 2 and 5 are tests.
        self.assertEqual(row["product_lines"], (6 - 2) + (11 - 5))
        self.assertEqual(row["product_code"], 1 + (1 + 3))
        self.assertEqual(row["test_lines"], 2 + 5 + 1 + 2 + 1 + 1 + 3)
        self.assertEqual(row["measuring_lines"], 2)
        self.assertEqual((row["modules"], row["orphans"]), (2, []))

    def test_a_measuring_crate_has_no_product_lines(self):
        self.measure({}, {"bench/Cargo.toml": "", "bench/src/main.rs": "fn main() {}\n"})
        self.assertEqual(
            [(row["name"], row["measuring_lines"], row["product_lines"]) for row in self.figures["crates"][1:]],
            [("bench", 1, 0)],
        )

    def test_the_largest_struct(self):
        source = (
            "struct Small { a: u8 } struct Tuple(u8, Vec<(u8, u8)>, [u8; 2]); struct Unit;\n"
            "pub(crate) struct Big<T: Fn(u8) -> u8> where T: Copy {"
            " #[serde(skip, default)] a: Map<u8, T>, pub b: fn(u8, u8) -> u8, c: u8, d: u8 }"
        )
        struct = self.measure({"a": source})["largest_struct"]
        self.assertEqual(struct, {"name": "Big", "fields": 4, "file": "crates/toy/src/a.rs"})

    def test_impl_lines_are_those_of_a_type_in_all_files(self):
        row = self.measure(
            {
                "a": "pub struct X;\nimpl X {\n    fn f() -> impl Iterator {}\n}\n",
                "b": "use crate::a::X;\nimpl<'a, T: Into<u8>> From<&'a T> for X where T: Copy {\n}\n",
                "c": "struct X;\nimpl X {}\nunsafe impl Send for X {}\nimpl std::fmt::Debug for &mut crate::a::Y<u8> {}",
            }
        )
        impls = [(impl["type"], impl["lines"], impl["files"], impl["defined_in"]) for impl in row["impls"]]
        self.assertEqual(impls[0], ("X", 5, 2, "crates/toy/src/a.rs"))
        self.assertEqual(impls[1], ("X", 2, 1, "crates/toy/src/c.rs"))
        self.assertEqual(impls[2][:2], ("Y", 1))

    def test_public_names_are_those_reachable_from_the_root(self):
        row = self.measure(
            {
                "lib": "pub mod open; pub use hidden::{A, B as C}; pub use serde::Serialize; pub fn f() {} fn g() {}",
                "open": "pub struct D; pub(crate) struct E; pub use crate::hidden::A; impl D { pub fn method() {} }",
                "hidden": "pub struct A; pub struct B; pub struct Unreached;\n#[macro_export] macro_rules! m { () => {} }",
            }
        )
        self.assertEqual(row["public_names"], len(["A", "B", "Serialize", "f", "D", "m"]))

    def test_long_functions_and_files_are_listed(self):
        body = "\n" * (figures.FUNCTION_LINES_MAX - 1)
        row = self.measure(
            {
                "a": f"fn fits() {{{body}}}\n\nfn long(x: [u8; 2]) -> u8 {{{body}\n}}\n"
                + f"#[cfg(test)]\nfn test() {{{body}\n\n}}\n"
                + "\n" * 400
            }
        )
        (function,) = row["long_functions"]
        self.assertEqual((function["name"], function["line"], function["lines"]), ("long", 62, 61))
        self.assertEqual([file["file"] for file in row["long_files"]], ["crates/toy/src/a.rs"])

    def test_a_file_that_no_module_declares_is_listed(self):
        self.assertEqual(self.measure({}, {"crates/toy/src/lost.rs": ""})["orphans"], ["crates/toy/src/lost.rs"])

    def test_the_reports_contain_each_crate(self):
        self.measure({"a": "use crate::b::B; pub struct A;", "b": "use crate::a::A; pub struct B;"})
        self.assertIn("2 modules of toy: a b", report.text(self.figures))
        other = {"crates": [], "total": figures.measure([], self.repository)["total"]}
        table = report.comparison(other, self.figures, ("old", "new"))
        self.assertIn("old → new", table)
        self.assertRegex(table, r"\| toy \| 0 → \d")


if __name__ == "__main__":
    unittest.main()
