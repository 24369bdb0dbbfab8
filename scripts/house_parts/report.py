"""Formats the figures as text, and two sets of figures side by side as Markdown."""

from .figures import FILE_LINES_MAX, FUNCTION_LINES_MAX

COLUMNS = [
    # title, function that returns the figure of a row
    ("product", lambda row: row["product_lines"]),
    ("code", lambda row: row["product_code"]),
    ("tests", lambda row: row["test_lines"]),
    ("measuring", lambda row: row["measuring_lines"]),
    ("modules", lambda row: row["modules"]),
    ("largest cycle", lambda row: row["largest_cycle"]),
    ("public names", lambda row: row["public_names"]),
    (f"fns > {FUNCTION_LINES_MAX}", lambda row: _count(row["long_functions"])),
    (f"files > {FILE_LINES_MAX}", lambda row: _count(row["long_files"])),
]


def _count(value):
    """The total contains a number where a crate contains a list."""
    return value if isinstance(value, int) else len(value)


def text(figures):
    rows = [*figures["crates"], {"name": "total", **figures["total"]}]
    titles = [title for title, _ in COLUMNS]
    widths = [max(len(title), 9) for title in titles]
    lines = ["crate".ljust(18) + "".join(title.rjust(width + 2) for title, width in zip(titles, widths, strict=True))]
    for row in rows:
        cells = [f"{figure(row):,}".rjust(width + 2) for (_, figure), width in zip(COLUMNS, widths, strict=True)]
        lines.append(row["name"].ljust(18) + "".join(cells))
    crates = figures["crates"]
    lines += _section("Import cycles", crates, lambda row: [_cycle(cycle) for cycle in row["cycles"]])
    lines += _section(
        "Import cycles between top-level modules, each taken with the files in its folder",
        crates,
        lambda row: [_cycle(cycle) for cycle in row["top_level_cycles"]],
    )
    lines += _section("Largest struct by fields", crates, lambda row: [_struct(row["largest_struct"], has_file=True)])
    lines += _section("Lines of impl blocks per type", crates, lambda row: [_impl(impl) for impl in row["impls"]])
    lines += _section(
        f"Functions over {FUNCTION_LINES_MAX} lines, tests aside",
        crates,
        lambda row: map(_function, row["long_functions"]),
    )
    lines += _section(f"Files over {FILE_LINES_MAX} lines", crates, lambda row: map(_file, row["long_files"]))
    lines += _section("Files in src/ that no module declares", crates, lambda row: row["orphans"])
    return "\n".join(lines) + "\n"


def _section(title, crates, entries_of):
    lines = ["", title]
    for row in crates:
        lines += [f"  {row['name']}: {entry}" for entry in entries_of(row)]
    return [*lines, "  none"] if len(lines) == 2 else lines


def _cycle(cycle):
    return f"{len(cycle['modules'])} modules of {cycle['target']}: {' '.join(cycle['modules'])}"


def _struct(struct, has_file=False):
    if struct is None:
        return "none"
    return f"{struct['name']}, {struct['fields']} fields" + (f", {struct['file']}" if has_file else "")


def _impl(impl):
    files = "1 file" if impl["files"] == 1 else f"{impl['files']} files"
    return f"{impl['type']}, {impl['lines']:,} lines in {files}"


def _function(function):
    return f"{function['name']}, {function['lines']} lines, {function['file']}:{function['line']}"


def _file(file):
    return f"{file['lines']:,} lines ({file['kind']}), {file['file']}"


def comparison(before, after, names):
    """Returns Markdown tables of two sets of figures; `names` are their titles."""
    pairs = _pairs(before, after)
    titles = [title for title, _ in COLUMNS]
    lines = [f"{names[0]} → {names[1]}", ""]
    lines += _table(
        ["crate", *titles],
        [
            [name, *(_change(_number(figure, old), _number(figure, new)) for _, figure in COLUMNS)]
            for name, old, new in pairs
        ],
    )
    lines += ["", "Largest struct, and the type with the most lines of `impl`:", ""]
    lines += _table(
        ["crate", "struct before", "struct after", "impl before", "impl after"],
        [
            [
                name,
                *(_struct(row["largest_struct"]) if row else "–" for row in (old, new)),
                *map(_largest_impl, (old, new)),
            ]
            for name, old, new in pairs
        ],
    )
    for title, key, show in [
        ("Import cycles", "cycles", _cycle),
        (f"Functions over {FUNCTION_LINES_MAX} lines", "long_functions", _function),
        (f"Files over {FILE_LINES_MAX} lines", "long_files", _file),
    ]:
        entries = [show(entry) for row in after["crates"] for entry in row[key]]
        lines += ["", f"{title} after ({before['total'][key]} → {len(entries)}):", ""]
        lines += [f"- {entry}" for entry in entries] or ["none"]
    return "\n".join(lines) + "\n"


def _pairs(before, after):
    """Returns (name, row before, row after) for every crate of either set, and the totals. A missing crate has None."""
    old = {row["name"]: row for row in before["crates"]}
    new = {row["name"]: row for row in after["crates"]}
    names = list(dict.fromkeys([*new, *old]))
    return [*((name, old.get(name), new.get(name)) for name in names), ("total", before["total"], after["total"])]


def _number(figure, row):
    return figure(row) if row else 0


def _change(old, new):
    return f"{old:,}" if old == new else f"{old:,} → {new:,}"


def _largest_impl(row):
    return _impl(row["impls"][0]) if row and row["impls"] else "–"


def _table(titles, rows):
    lines = ["| " + " | ".join(titles) + " |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]
