import unittest

from fixture import RepositoryTest
from house_parts import allow_list, crates, cycles, graphs

KNOT = {
    "a": "use crate::b::B; pub struct A;",
    "b": "use crate::c::C; pub struct B;",
    "c": "use crate::a::A; pub struct C;",
}
PAIR = {"a": "use crate::b::B; pub struct A;", "b": "use crate::a::A; pub struct B;", "c": ""}


class Cycles(RepositoryTest):
    def test_components_are_found_largest_first(self):
        edges = {("a", "b"), ("b", "a"), ("c", "d"), ("d", "e"), ("e", "c"), ("b", "c"), ("e", "f")}
        self.assertEqual(cycles.components(edges), [["c", "d", "e"], ["a", "b"]])

    def test_the_shortest_cycle_is_found(self):
        edges = {("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "c")}
        self.assertEqual(cycles.shortest_cycle(edges, ["a", "b", "c", "d"]), ["c", "d", "c"])

    def test_a_cycle_through_a_parent(self):
        graph = self.graph({"a": "mod b; use b::B; pub struct A;", "a/b": "use super::A; pub struct B;"})
        self.assertEqual(graph.cycles, [[("a",), ("a", "b")]])

    def test_children_that_a_parent_only_reexports_form_no_cycle(self):
        graph = self.graph({"a": "mod b; pub use b::B; pub struct A;", "a/b": "use super::A; pub struct B;"})
        self.assertEqual(graph.cycles, [])

    def test_top_level_modules_are_taken_with_their_folders(self):
        graph = self.graph(
            {"a": "mod x; pub struct A;", "a/x": "use crate::b::B;", "b": "use crate::a::A; pub struct B;"}
        )
        self.assertEqual((graph.cycles, graph.top_level_cycles), ([], [[("a",), ("b",)]]))


class Check(RepositoryTest):
    def check(self, modules, allowed=""):
        self.crate(modules)
        self.write({allow_list.FILE: allowed})
        self.graphs = [graph for crate in crates.find_crates(self.repository) for graph in graphs.graphs_of(crate)]
        return allow_list.check(self.graphs, self.repository)

    def test_a_tree_passes_without_a_list(self):
        self.assertEqual(self.check({"a": "use crate::b::B;", "b": "pub struct B;"}), [])

    def test_a_new_cycle_fails_and_names_its_modules_and_imports(self):
        (error,) = self.check(KNOT)
        self.assertIn("toy: import cycle of 3 modules", error)
        self.assertIn("a b c", error)
        self.assertIn("c -> a  crates/toy/src/c.rs:1  use crate::a::A", error)

    def test_a_listed_cycle_passes(self):
        self.assertEqual(self.check(KNOT, "# why\n\ntoy: c a b  # they are one machine\n"), [])

    def test_a_cycle_that_grew_fails(self):
        errors = self.check(KNOT, "toy: a b  # to be untangled\n")
        self.assertEqual(len(errors), 2)
        self.assertIn("cycle of 3 modules that is not in", errors[0])
        self.assertIn("this cycle does not exist", errors[1])

    def test_a_cycle_that_shrank_must_shrink_in_the_list(self):
        (error,) = self.check(PAIR, "toy: a b c  # to be untangled\n")
        self.assertIn("scripts/house.cycles:1: the cycle is smaller, write: toy: a b", error)

    def test_a_stale_entry_fails(self):
        (error,) = self.check({"a": ""}, "toy: a b  # to be untangled\n")
        self.assertIn("scripts/house.cycles:1: this cycle does not exist", error)

    def test_an_entry_without_a_reason_fails(self):
        errors = self.check(PAIR, "toy: a b\n")
        self.assertIn("scripts/house.cycles:1: a cycle needs a reason after `#`", errors)

    def test_the_written_list_passes_and_keeps_reasons(self):
        self.check(PAIR)
        entries, _ = allow_list.read(self.repository / allow_list.FILE)
        self.assertEqual(self.check(PAIR, allow_list.render(self.graphs, entries)), [])
        self.check(PAIR, "toy: a b c  # one machine\n")
        entries, _ = allow_list.read(self.repository / allow_list.FILE)
        self.assertIn("toy: a b  # one machine", allow_list.render(self.graphs, entries))


if __name__ == "__main__":
    unittest.main()
