"""Checks the code map of ARCHITECTURE.md: tables that name every source file, or a folder that contains it.

The paths are in backticks in the first cell of a row, relative to the repository: `crates/x/src/a.rs`, or `crates/x/src/a/` for
all files in that folder. Only tables below a heading with the words "code map" are read.
"""

import re

FILE = "ARCHITECTURE.md"
_HEADING = re.compile(r"^(#+)\s+(.*)")
_CODE = re.compile(r"`([^`]+)`")


def read(text):
    """Yields (line number, path) for each path in the map."""
    level = None  # level of the code map's heading, while inside the map
    is_fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
        heading = None if is_fenced else _HEADING.match(line)
        if heading:
            if "code map" in heading[2].lower():
                level = len(heading[1])
            elif level is not None and len(heading[1]) <= level:
                level = None
        elif level is not None and not is_fenced and line.startswith("|"):
            first_cell = line.split("|")[1]
            for path in _CODE.findall(first_cell):
                yield number, path


def check(crates, repository):
    """Returns the errors: paths that do not exist, and product files under crates/*/src that no path covers."""
    file = repository / FILE
    paths = list(read(file.read_text(encoding="utf-8"))) if file.is_file() else []
    if not paths:
        return [f"{FILE}: no code map: a table of paths in backticks below a heading with the words 'code map'"]
    errors = []
    for number, path in paths:
        exists = (repository / path).is_dir() if path.endswith("/") else (repository / path).is_file()
        if not exists:
            hint = "; a folder ends with /" if (repository / path).is_dir() else ""
            errors.append(f"{FILE}:{number}: the code map names {path}, which does not exist{hint}")
    covered = [path for _, path in paths]
    for source in _product_files(crates, repository):
        if not any(source == path or (path.endswith("/") and source.startswith(path)) for path in covered):
            errors.append(f"{FILE}: the code map does not name {source}, nor a folder that contains it")
    return errors


def _product_files(crates, repository):
    for crate in crates:
        if crate.folder.parent == repository / "crates":
            for source in sorted(crate.files.values(), key=lambda source: source.path):
                if not source.is_test or source.path in crate.orphans:
                    yield source.path.relative_to(repository).as_posix()
