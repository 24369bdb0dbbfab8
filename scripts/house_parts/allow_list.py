"""The list of allowed import cycles, scripts/house.cycles: `crate: module module ...  # reason`, one cycle per line."""

from dataclasses import dataclass

from . import cycles
from .graphs import describe, name_of

FILE = "scripts/house.cycles"
DEFAULT_REASON = "to be untangled"
HEADER = """\
# Import cycles that scripts/house --check allows: `crate: module module ...  # reason`, one cycle per line.
# An entry must be exactly a current cycle, so the list only shrinks. `scripts/house --cycles CRATE` shows the imports that form a
# cycle; `scripts/house --write-list` writes this file.
"""


@dataclass
class Entry:
    target: str
    modules: frozenset
    reason: str
    line: int


def read(file):
    """Returns the entries of the list, and the errors in its lines."""
    entries, errors = [], []
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    for number, line in enumerate(lines, 1):
        content, _, reason = (part.strip() for part in line.partition("#"))
        if not content:
            continue
        target, colon, modules = content.partition(":")
        # `a::b` contains colons too, but only the colon after the crate is followed by a space.
        if not colon or not modules.startswith(" ") or len(modules.split()) < 2:
            errors.append(f"{FILE}:{number}: not `crate: module module ...  # reason`")
        elif not reason:
            errors.append(f"{FILE}:{number}: a cycle needs a reason after `#`")
        else:
            entries.append(Entry(target, frozenset(modules.split()), reason, number))
    return entries, errors


def check(graphs, repository):
    """Returns the errors: cycles that are not in the list, and entries that are not a cycle."""
    entries, errors = read(repository / FILE)
    unseen = list(entries)
    for graph, nodes in _cycles(graphs):
        modules = frozenset(map(name_of, nodes))
        mine = [entry for entry in unseen if entry.target == graph.target]
        entry = next((entry for entry in mine if entry.modules == modules), None)
        if entry is None:
            entry = next((entry for entry in mine if modules < entry.modules), None)
            errors.append(_unlisted(graph, nodes, entry, repository))
        if entry is not None:
            unseen.remove(entry)
    for entry in unseen:
        names = " ".join(sorted(entry.modules))
        errors.append(f"{FILE}:{entry.line}: this cycle does not exist, remove its line: {entry.target}: {names}")
    return errors


def _unlisted(graph, nodes, smaller_than, repository):
    names = " ".join(map(name_of, nodes))
    if smaller_than is not None:
        return f"{FILE}:{smaller_than.line}: the cycle is smaller, write: {graph.target}: {names}"
    path = cycles.shortest_cycle(graph.edges, nodes)
    steps = [describe(graph.edges[step], repository) for step in zip(path, path[1:], strict=False)]
    return (
        f"{graph.target}: import cycle of {len(nodes)} modules that is not in {FILE}: {names}\n"
        "  the shortest cycle; remove one of these imports:\n    " + "\n    ".join(steps)
    )


def render(graphs, entries):
    """Returns the list for the current cycles. A cycle that is an entry, or part of one, keeps its reason."""
    lines = []
    for graph, nodes in _cycles(graphs):
        modules = frozenset(map(name_of, nodes))
        reasons = [entry.reason for entry in entries if entry.target == graph.target and modules <= entry.modules]
        reason = reasons[0] if reasons else DEFAULT_REASON
        lines.append(f"{graph.target}: {' '.join(map(name_of, nodes))}  # {reason}\n")
    return HEADER + "".join(lines)


def _cycles(graphs):
    return [(graph, nodes) for graph in graphs for nodes in graph.cycles]
