"""Finds the edges of the import graph: a module has an edge to each module that defines a name which it uses."""

from dataclasses import dataclass, field


@dataclass
class Edge:
    """One module uses names of another."""

    source: object  # Module
    target: object
    line: int  # line of the first import, or else of the first use
    written: str  # that import, or the path that is used
    names: list = field(default_factory=list)


@dataclass(eq=False)
class _Place:
    """A scope in the module tree: that of a file or of an inline module."""

    scope: object
    module: object  # the Module of the file
    parent: object = None
    path: tuple = ()
    children: dict = field(default_factory=dict)
    imports: dict = field(default_factory=dict)  # name -> [Import]
    globs: list = field(default_factory=list)
    names: dict = field(default_factory=dict)  # name -> the Module that defines it


@dataclass(frozen=True)
class Target:
    """The result of resolving a path: an item of a module, a module itself, or something outside the crate."""

    kind: str  # "item", "module", "outside"
    module: object = None
    name: str = ""
    place: object = None


class Resolver:
    """Resolves paths through modules, imports, renames, globs and re-exports to their definitions."""

    def __init__(self, root):
        self.root = self._place(root.scope, root, None, ())
        self._known = {}
        for place in self.places():
            for name in place.scope.exported_macros:  # #[macro_export] defines them at the root
                self.root.names.setdefault(name, place.module)

    def _place(self, scope, module, parent, path):
        place = _Place(scope, module, parent, path)
        place.names = dict.fromkeys(scope.names, module)
        for imported in scope.imports:
            if imported.name is None:
                place.globs.append(imported)
            else:
                place.imports.setdefault(imported.name, []).append(imported)
        for inline in scope.inline_modules:
            place.children[inline.name] = self._place(inline, module, place, (*path, inline.name))
        for declaration in scope.declarations:
            child = module.children.get((*path, declaration.name))
            if child is not None:
                place.children[declaration.name] = self._place(child.scope, child, place, child.path)
        return place

    def places(self):
        todo = [self.root]
        while todo:
            place = todo.pop()
            yield place
            todo.extend(place.children.values())

    def lookup(self, place, name, busy=frozenset()):
        """Returns all targets of `name` in this scope: a module and an item may have the same name."""
        key = (place, name)
        if not busy and key in self._known:
            return self._known[key]
        found = []
        if name in place.names:
            found.append(Target("item", place.names[name], name))
        if name in place.children:
            found.append(Target("module", place.children[name].module, name, place.children[name]))
        for imported in place.imports.get(name, ()):
            if id(imported) not in busy:
                found.extend(self.resolve(place, imported.path, busy | {id(imported)}))
        if not found:
            for imported in place.globs:
                if id(imported) not in busy:
                    found.extend(self._lookup_in_glob(place, imported, name, busy | {id(imported)}))
        found = list(dict.fromkeys(found))
        if not busy:
            self._known[key] = found
        return found

    def _lookup_in_glob(self, place, imported, name, busy):
        for target in self.resolve(place, imported.path, busy):
            if target.kind == "module":
                yield from self.lookup(target.place, name, busy)

    def resolve(self, place, path, busy=frozenset()):
        """Returns the targets of a path in this scope. A path with an unknown first word leads outside the crate."""
        first, *rest = path
        if first in {"crate", "self", "super"}:
            start = {"crate": self.root, "self": place, "super": place.parent}[first]
            if start is None:
                return []
            targets = [Target("module", start.module, first, start)]
        else:
            targets = self.lookup(place, first, busy) if first else []
            if not targets:
                return [Target("outside", name="::".join(path))]
        for word in rest:
            modules = [target for target in targets if target.kind == "module"]
            if not modules:
                return targets  # an associated item, a variant, or something outside
            targets = self._step(modules[0], word, busy)
        return targets

    def _step(self, target, word, busy):
        place = target.place
        if word == "self":
            return [target]
        if word == "super":
            return [Target("module", place.parent.module, word, place.parent)] if place.parent else []
        # A name that is not found was probably defined by a macro.
        return self.lookup(place, word, busy) or [Target("item", place.module, word)]


def edges_of(root):
    """Returns the edges between the modules of a crate, by (source path, target path)."""
    resolver = Resolver(root)
    edges = {}
    for place in resolver.places():
        source = place.module
        for target, line, written in _needs(resolver, place):
            if target.module is source:
                continue
            key = (source.path, target.module.path)
            edge = edges.setdefault(key, Edge(source, target.module, line, written))
            if target.name not in edge.names:
                edge.names.append(target.name)
    return edges


def _needs(resolver, place):
    """Yields (target, line, path as written): imports first, then the paths in the code."""
    paths = place.scope.paths
    heads = {path[0] for path in paths if len(path) > 1}
    for imported in place.scope.imports:
        written = "use " + "::".join(imported.path) + ("::*" if imported.name is None else "")
        targets = resolver.resolve(place, imported.path)
        is_glob = imported.name is None
        for target in targets:
            is_own_child = target.module is not None and target.module.path[: len(place.path)] == place.path
            if target.kind == "outside" or (imported.is_reexport and is_own_child):
                continue  # a parent that only re-exports its children's names does not use them
            if target.kind == "module" and (is_glob or imported.is_reexport or imported.name in heads):
                continue  # the paths in the code show which names of the module are used
            is_shared_name = len(targets) > 1 and target.kind == "item" and not is_glob
            if is_shared_name and (imported.name,) not in paths:
                continue
            yield target, imported.line, written
        if is_glob and not imported.is_reexport:
            yield from _unused_glob(resolver, place, imported, targets, written)
    for path, line in paths.items():
        if len(path) == 1 and path[0] not in place.imports and not place.globs:
            continue
        for target in resolver.resolve(place, path):
            if target.kind == "item":
                yield target, line, "::".join(path)


def _unused_glob(resolver, place, imported, targets, written):
    """Yields the module of a glob import if none of its names is visibly used: the import may be for a trait's methods."""
    for target in targets:
        if target.kind == "module" and not any(resolver.lookup(target.place, path[0]) for path in place.scope.paths):
            yield target, imported.line, written
