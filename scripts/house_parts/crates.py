"""Reads the crates of a repository: their files, and the module tree that their `mod` declarations form."""

from dataclasses import dataclass, field
from pathlib import Path

from . import cfg, items, tokens

# Modules with these names are tests, whatever feature enables them.
TEST_MODULES = {"conformance"}


@dataclass(eq=False)
class Module:
    """A file of the product."""

    path: tuple  # names from the root; () is the root itself
    file: Path
    scope: items.Scope
    children: dict = field(default_factory=dict)  # path -> Module
    is_public: bool = True

    @property
    def name(self):
        return "::".join(self.path) or "crate"

    def with_children(self):
        yield self
        for child in self.children.values():
            yield from child.with_children()


@dataclass
class SourceFile:
    path: Path
    lines: int = 0
    test_lines: int = 0
    code_lines: int = 0  # lines of product code that are neither blank nor comment
    is_test: bool = True  # set to False when it turns out to contain product code


@dataclass
class Crate:
    name: str
    folder: Path
    roots: dict = field(default_factory=dict)  # target name -> root Module
    files: dict = field(default_factory=dict)  # Path -> SourceFile, for the files of src/
    orphans: list = field(default_factory=list)  # files of src/ that no module declares


def find_crates(repository, wanted=None):
    """Returns the crates of the repository, or only the crate with the wanted name."""
    folders = [*sorted(repository.glob("crates/*")), repository / "bench", *sorted(repository.glob("bench/*"))]
    folders = [folder for folder in folders if (folder / "Cargo.toml").is_file()]
    return [load_crate(folder) for folder in folders if wanted in (None, folder.name)]


def load_crate(folder):
    crate = Crate(folder.name, folder)
    source = folder / "src"
    roots = [
        source / "lib.rs",
        source / "main.rs",
        *sorted(source.glob("bin/*.rs")),
        *sorted(source.glob("bin/*/main.rs")),
    ]
    for root in [root for root in roots if root.is_file()]:
        target = crate.name if not crate.roots else f"{crate.name}/{_target(root)}"
        crate.roots[target] = _Loader(crate).product(root, (), root.parent)
    for file in sorted(source.rglob("*.rs")):
        if file not in crate.files:
            crate.orphans.append(file)
            crate.files[file] = SourceFile(file, lines=file.read_bytes().count(b"\n"))
    return crate


def _target(root):
    return root.parent.name if root.name == "main.rs" and root.parent.name != "src" else root.stem


class _Loader:
    def __init__(self, crate):
        self.crate = crate

    def read(self, file):
        content = file.read_text(encoding="utf-8")
        source = self.crate.files.setdefault(file, SourceFile(file))
        source.lines = content.count("\n")
        try:
            return source, *cfg.split(tokens.tokenize(content))
        except ValueError as error:
            raise SystemExit(f"{file}: {error}") from error

    def product(self, file, path, folder, is_public=True):
        """Loads a file of the product as a module; `folder` contains its child modules."""
        source, product, pieces = self.read(file)
        source.is_test = bool(pieces) and not product
        source.test_lines = sum(piece[-1].last_line - piece[0].line + 1 for piece in pieces)
        code = {line for token in product for line in range(token.line, token.last_line + 1)}
        source.code_lines = len(code)
        module = Module(path, file, items.parse(product), is_public=is_public)
        self.children(module, module.scope, path, folder)
        for piece in pieces:
            self.test_children(items.parse(piece), file, folder)
        return module

    def children(self, module, scope, path, folder):
        for declaration in scope.declarations:
            file, inner = _file_of(declaration, module.file, folder)
            if file is None:
                raise SystemExit(f"{module.file}:{declaration.line}: no file for mod {declaration.name}")
            if declaration.name in TEST_MODULES:
                self.test(file, inner)
                continue
            child = self.product(file, (*path, declaration.name), inner, declaration.is_public)
            module.children[child.path] = child
        for inline in scope.inline_modules:
            self.children(module, inline, (*path, inline.name), folder / inline.name)

    def test(self, file, folder):
        """Loads a file that is compiled only for tests, and its child modules."""
        if file in self.crate.files:
            return
        source, product, pieces = self.read(file)
        source.test_lines = source.lines
        for piece in [product, *pieces]:
            self.test_children(items.parse(piece), file, folder)

    def test_children(self, scope, file, folder):
        for declaration in scope.declarations:
            child, inner = _file_of(declaration, file, folder)
            if child is not None:
                self.test(child, inner)
        for inline in scope.inline_modules:
            self.test_children(inline, file, folder / inline.name)


def _file_of(declaration, parent, folder):
    """Returns the file of a `mod name;`, and the folder of its child modules."""
    if declaration.path is not None:
        file = parent.parent / declaration.path
        return (
            (file, file.parent if file.name == "mod.rs" else file.with_suffix("")) if file.is_file() else (None, None)
        )
    for file in (folder / f"{declaration.name}.rs", folder / declaration.name / "mod.rs"):
        if file.is_file():
            return file, folder / declaration.name
    return None, None
