"""Builds the import graph of each target (a library or a binary) of each crate, and finds its cycles."""

from dataclasses import dataclass, field

from . import cycles, imports


@dataclass
class Graph:
    target: str
    root: object  # Module
    edges: dict  # (source path, target path) -> Edge
    cycles: list = field(default_factory=list)  # each cycle is a list of module paths
    top_level_cycles: list = field(default_factory=list)  # each cycle is a list of paths of top-level modules

    def modules(self):
        return list(self.root.with_children())

    def inside(self, nodes):
        """The edges within a set of modules."""
        return [edge for (source, target), edge in sorted(self.edges.items()) if source in nodes and target in nodes]


def graphs_of(crate):
    return [_graph(target, root) for target, root in crate.roots.items()]


def _graph(target, root):
    edges = imports.edges_of(root)
    graph = Graph(target, root, edges, cycles.components(edges))
    top_level = {(source[:1], to[:1]) for source, to in edges if source[:1] != to[:1]}
    graph.top_level_cycles = cycles.components(top_level)
    return graph


def name_of(path):
    return "::".join(path) or "crate"


def describe(edge, repository):
    """`a -> b  src/a.rs:7  use crate::b::X (X, Y)`."""
    names = ", ".join(name or "*" for name in edge.names)
    file = edge.source.file.relative_to(repository)
    return f"{edge.source.name} -> {edge.target.name}  {file}:{edge.line}  {edge.written}  ({names})"


def print_cycles(crates, repository, print=print):
    """Prints each cycle with its edges, to see which imports to remove."""
    for graph in [graph for crate in crates for graph in graphs_of(crate)]:
        print(f"{graph.target}: {len(graph.modules())} modules, {len(graph.cycles)} cycles")
        for nodes in graph.cycles:
            print(f"\n  cycle of {len(nodes)}: {' '.join(map(name_of, nodes))}")
            for edge in graph.inside(set(nodes)):
                print(f"    {describe(edge, repository)}")
        for nodes in [nodes for nodes in graph.top_level_cycles if nodes not in graph.cycles]:
            print(
                f"\n  top-level modules, each with its folder, cycle of {len(nodes)}: {' '.join(map(name_of, nodes))}"
            )
            for edge in [edge for edge in graph.edges.values() if _crosses(edge, set(nodes))]:
                print(f"    {describe(edge, repository)}")
        print()


def _crosses(edge, nodes):
    source, target = edge.source.path[:1], edge.target.path[:1]
    return source != target and source in nodes and target in nodes
