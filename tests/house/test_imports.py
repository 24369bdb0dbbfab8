import unittest

from fixture import RepositoryTest


class Imports(RepositoryTest):
    def test_nested_braces_lead_to_each_module(self):
        edges = self.edges(
            {
                "a": "use crate::{b::{X, deep::{self, Y}}, c::Z as W};",
                "b": "pub mod deep; pub struct X;",
                "b/deep": "pub struct Y;",
                "c": "pub struct Z;",
            }
        )
        self.assertEqual(edges, {"a -> b", "a -> b::deep", "a -> c"})

    def test_a_name_that_the_root_reexports_leads_to_its_definition(self):
        edges = self.edges(
            {
                "lib": "pub use b::X as Renamed;",
                "a": "use crate::Renamed;",
                "b": "pub struct X;",
                "c": "fn f(x: crate::Renamed) {}",
            }
        )
        self.assertEqual(edges, {"a -> b", "c -> b"})

    def test_chains_of_globs_and_renames_are_followed(self):
        edges = self.edges(
            {
                "lib": "pub use b::*;",
                "a": "use crate::Last;",
                "b": "pub(crate) use super::c::*;",
                "c": "pub use self::d::First as Last; pub mod d;",
                "c/d": "pub struct First;",
            }
        )
        self.assertIn("a -> c::d", edges)
        self.assertFalse({edge for edge in edges if edge.startswith("a ")} - {"a -> c::d"})

    def test_globs_that_reexport_each_other_do_not_hang(self):
        edges = self.edges(
            {"a": "pub use crate::b::*; pub struct X;", "b": "pub use crate::a::*;", "c": "use crate::b::X;"}
        )
        self.assertIn("c -> a", edges)

    def test_a_glob_import_leads_to_the_names_that_are_used(self):
        edges = self.edges(
            {
                "a": "use crate::b::*; fn f() -> X { make() }",
                "b": "pub use crate::c::X; pub fn make() {}",
                "c": "pub struct X;",
            }
        )
        self.assertEqual(edges, {"a -> b", "a -> c", "b -> c"})

    def test_a_glob_import_without_a_visibly_used_name_leads_to_the_module(self):
        self.assertEqual(self.edges({"a": "use crate::b::*; fn f() { 1.go() }", "b": "pub trait Go {}"}), {"a -> b"})

    def test_super_super(self):
        edges = self.edges(
            {
                "a": "mod b; pub struct InA;",
                "a/b": "mod c;",
                "a/b/c": "use super::super::InA; fn f() { super::super::super::d::go() }",
                "d": "pub fn go() {}",
            }
        )
        self.assertEqual(edges, {"a::b::c -> a", "a::b::c -> d"})

    def test_super_in_an_inline_module_is_the_file_itself(self):
        self.assertEqual(
            self.edges({"a": "struct X; mod inner { use super::X; use super::super::b::Y; }", "b": "pub struct Y;"}),
            {"a -> b"},
        )

    def test_paths_in_code_are_edges(self):
        edges = self.edges(
            {
                "a": "mod child; use crate::c; fn f() { child::go(); c::stop(); let x = vec![crate::d::MAX]; }",
                "a/child": "pub fn go() {}",
                "c": "pub fn stop() {}",
                "d": "pub const MAX: u8 = 1;",
            }
        )
        self.assertEqual(edges, {"a -> a::child", "a -> c", "a -> d"})

    def test_a_use_in_a_function_is_an_edge(self):
        self.assertEqual(self.edges({"a": "fn f() { use crate::b::X; }", "b": "pub struct X;"}), {"a -> b"})

    def test_a_parent_that_only_reexports_names_of_its_children_has_no_edge(self):
        self.assertEqual(self.edges({"a": "mod b; pub use b::X;", "a/b": "pub struct X;"}), set())
        self.assertEqual(self.edges({"a": "mod b; pub(crate) use b::*;", "a/b": "pub struct X;"}), set())

    def test_a_parent_that_uses_a_name_it_reexports_has_an_edge(self):
        self.assertEqual(self.edges({"a": "mod b; pub use b::X; fn f(x: X) {}", "a/b": "pub struct X;"}), {"a -> a::b"})
        self.assertEqual(self.edges({"a": "mod b; pub use b::*; fn f(x: X) {}", "a/b": "pub struct X;"}), {"a -> a::b"})

    def test_a_module_imported_by_name_leads_to_the_names_that_are_used(self):
        edges = self.edges(
            {
                "a": "use crate::b; fn f() { b::X::new() }",
                "b": "mod c; pub use c::X; pub struct Y;",
                "b/c": "pub struct X;",
            }
        )
        self.assertEqual(edges, {"a -> b::c"})

    def test_a_module_and_a_function_with_the_same_name(self):
        edges = self.edges({"lib": "pub use b::b;", "a": "use crate::b; fn f() { b() }", "b": "pub fn b() {}"})
        self.assertEqual(edges, {"a -> b"})

    def test_names_from_outside_lead_nowhere(self):
        edges = self.edges(
            {
                "lib": "pub use serde::Serialize;",
                "a": "use crate::Serialize; use ::b::X; use std::fmt;",
                "b": "pub struct X;",
            }
        )
        self.assertEqual(edges, set())

    def test_test_code_has_no_edges(self):
        edges = self.edges(
            {
                "lib": '#[cfg(feature = "test-util")] mod t;',
                "a": "#[cfg(test)] use crate::b::X; #[cfg(test)] mod tests { use crate::b::X; } #[cfg(test)] mod more;",
                "a/more": "use crate::b::X;",
                "b": "pub struct X;",
                "t": "use crate::b::X;",
            }
        )
        self.assertEqual(edges, set())

    def test_comments_strings_and_macro_bodies_have_no_edges(self):
        source = (
            '//! [`crate::b::X`]\n/* crate::b::X */ fn f() { g("crate::b::X", r#"use crate::b::X;"#) }\n'
            "macro_rules! m { () => { $crate::b::X } }"
        )
        self.assertEqual(self.edges({"a": source, "b": "pub struct X;"}), set())

    def test_an_exported_macro_is_at_the_root(self):
        edges = self.edges({"a": "fn f() { crate::m!() }", "b": "#[macro_export] macro_rules! m { () => {} }"})
        self.assertEqual(edges, {"a -> b"})

    def test_a_visibility_is_not_a_use(self):
        self.assertEqual(
            self.edges({"a": "mod b; pub struct X;", "a/b": "pub(in crate::a) fn f() {} pub(super) fn g() {}"}), set()
        )

    def test_an_edge_says_where_and_which_names(self):
        graph = self.graph(
            {
                "a": "// one\nuse crate::b::{X, Y};\nfn f() { crate::b::go() }",
                "b": "pub struct X; pub struct Y; pub fn go() {}",
            }
        )
        (edge,) = graph.edges.values()
        self.assertEqual((edge.line, edge.written, edge.names), (2, "use crate::b::X", ["X", "Y", "go"]))


if __name__ == "__main__":
    unittest.main()
