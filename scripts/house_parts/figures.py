"""Computes the figures of each crate as plain dictionaries, which the report prints and --json writes."""

from . import imports
from .graphs import graphs_of, name_of

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500
TYPES_LISTED = 5
MEASURING_CRATES = {"prombus-bench", "bench"}
MEASURING_FOLDERS = {"benches", "examples"}


def measure(crates, repository):
    rows = [_crate(crate, repository) for crate in crates]
    return {"crates": rows, "total": _total(rows)}


def _crate(crate, repository):
    graphs = graphs_of(crate)
    row = {"name": crate.name, **_lines(crate, repository)}
    row["modules"] = sum(len(graph.modules()) for graph in graphs)
    row["cycles"] = [
        {"target": graph.target, "modules": list(map(name_of, nodes))} for graph in graphs for nodes in graph.cycles
    ]
    row["top_level_cycles"] = [
        {"target": graph.target, "modules": list(map(name_of, nodes))}
        for graph in graphs
        for nodes in graph.top_level_cycles
    ]
    row["largest_cycle"] = max((len(cycle["modules"]) for cycle in row["cycles"]), default=0)
    modules = [module for graph in graphs for module in graph.modules()]
    row["largest_struct"] = _largest_struct(modules, repository)
    row["impls"] = _impls(crate, repository)
    row["public_names"] = _public_names(crate)
    row["long_functions"] = _long_functions(modules, repository)
    row["orphans"] = [str(file.relative_to(repository)) for file in crate.orphans]
    return row


def _lines(crate, repository):
    lines = {"product_lines": 0, "product_code": 0, "test_lines": 0, "measuring_lines": 0, "long_files": []}
    is_measuring = crate.name in MEASURING_CRATES or crate.folder.parent.name == "bench"
    for file in sorted(crate.folder.rglob("*.rs")):
        folder = file.relative_to(crate.folder).parts[0]
        if folder == "target":
            continue
        source = crate.files.get(file)
        count = source.lines if source else file.read_bytes().count(b"\n")
        test_lines = source.test_lines if source else count if folder == "tests" else 0
        lines["test_lines"] += test_lines
        if is_measuring or folder in MEASURING_FOLDERS:
            kind = "measuring"
            lines["measuring_lines"] += count - test_lines
        else:
            kind = "product"
            lines["product_lines"] += count - test_lines
            lines["product_code"] += source.code_lines if source else 0
        if count > FILE_LINES_MAX:
            kind = "tests" if test_lines == count else kind
            lines["long_files"].append({"file": str(file.relative_to(repository)), "lines": count, "kind": kind})
    lines["long_files"].sort(key=lambda file: -file["lines"])
    return lines


def _largest_struct(modules, repository):
    structs = [
        {"name": struct.name, "fields": struct.fields, "file": str(module.file.relative_to(repository))}
        for module in modules
        for scope in module.scope.with_inline()
        for struct in scope.structs
    ]
    return max(structs, key=lambda struct: struct["fields"], default=None)


def _impls(crate, repository):
    """Returns the lines of all impl blocks per type. Types with the same name in two modules are two types."""
    found = {}
    for root in crate.roots.values():
        resolver = imports.Resolver(root)
        for place in resolver.places():
            for block in place.scope.impls:
                targets = [target for target in resolver.lookup(place, block.type_name) if target.kind == "item"]
                owner = targets[0].module if targets else None
                name = targets[0].name if targets else block.type_name
                file = owner.file if owner else None
                total = found.setdefault((name, file), {"type": name, "lines": 0, "files": set()})
                total["lines"] += block.lines
                total["files"].add(place.module.file)
    for (_, file), total in found.items():
        total["files"] = len(total["files"])
        total["defined_in"] = str(file.relative_to(repository)) if file else None
    return sorted(found.values(), key=lambda total: (-total["lines"], total["type"]))[:TYPES_LISTED]


def _long_functions(modules, repository):
    functions = [
        {
            "name": function.name,
            "file": str(module.file.relative_to(repository)),
            "line": function.line,
            "lines": function.lines,
        }
        for module in modules
        for scope in module.scope.with_inline()
        for function in scope.functions
        if function.lines > FUNCTION_LINES_MAX
    ]
    return sorted(functions, key=lambda function: (-function["lines"], function["file"]))


def _public_names(crate):
    """Counts the names that a program can use: pub items, exported macros and `pub use` reachable from the library's root."""
    root = crate.roots.get(crate.name)
    if root is None or root.file.name != "lib.rs":
        return 0
    resolver = imports.Resolver(root)
    names, seen = set(), set()

    def collect(place):
        if place in seen:
            return
        seen.add(place)
        names.update((place.module.path, name) for name, is_public in place.scope.names.items() if is_public)
        public = {
            module.name for module in (*place.scope.declarations, *place.scope.inline_modules) if module.is_public
        }
        for name, child in place.children.items():
            if name in public:
                collect(child)
        for imported in place.scope.imports:
            if imported.is_public:
                for target in resolver.resolve(place, imported.path):
                    if target.kind == "module":
                        collect(target.place)
                    else:
                        names.add((target.module.path if target.module else None, target.name))

    collect(resolver.root)
    for place in resolver.places():
        names.update(((), name) for name in place.scope.exported_macros)
    return len(names)


def _total(rows):
    total = {
        key: sum(row[key] for row in rows)
        for key in ("product_lines", "product_code", "test_lines", "measuring_lines", "modules", "public_names")
    }
    total["largest_cycle"] = max((row["largest_cycle"] for row in rows), default=0)
    structs = [row["largest_struct"] for row in rows if row["largest_struct"]]
    total["largest_struct"] = max(structs, key=lambda struct: struct["fields"], default=None)
    total["impls"] = sorted((impl for row in rows for impl in row["impls"]), key=lambda impl: -impl["lines"])[
        :TYPES_LISTED
    ]
    for key in ("cycles", "top_level_cycles", "long_functions", "long_files", "orphans"):
        total[key] = sum(len(row[key]) for row in rows)
    return total
