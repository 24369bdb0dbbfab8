"""Parses the items of one file: modules, names, imports, paths in the code, structs, impl blocks and functions."""

from dataclasses import dataclass, field

from .tokens import PUNCT, WORD, match_brackets

_NAMED = {"struct", "enum", "union", "trait", "type", "static", "const", "fn"}
# Words that cannot begin a path. `crate`, `self` and `super` can.
_KEYWORDS = {
    "Self", "as", "async", "await", "break", "const", "continue", "dyn", "else", "enum", "extern", "false", "fn", "for",
    "if", "impl", "in", "let", "loop", "match", "mod", "move", "mut", "pub", "ref", "return", "static", "struct", "trait",
    "true", "type", "union", "unsafe", "use", "where", "while",
}  # fmt: skip


@dataclass
class Import:
    path: tuple  # words; the first is "" for a path that begins with `::`
    name: str | None  # the name in this scope; None for a glob
    is_reexport: bool  # pub, pub(crate), pub(super), pub(in ...)
    is_public: bool  # pub
    line: int


@dataclass
class ModuleDeclaration:
    """`mod name;`: a module in another file."""

    name: str
    is_public: bool
    path: str | None  # the value of #[path = "..."]
    line: int


@dataclass
class Struct:
    name: str
    fields: int
    line: int


@dataclass
class ImplBlock:
    type_name: str
    lines: int
    line: int


@dataclass
class Function:
    name: str
    lines: int
    line: int


@dataclass
class Scope:
    """The scope of a module: that of a file, or of an inline module."""

    name: str
    is_public: bool = True
    names: dict = field(default_factory=dict)  # name -> whether it is pub
    imports: list = field(default_factory=list)
    paths: dict = field(default_factory=dict)  # tuple of words -> the first line that contains it
    inline_modules: list = field(default_factory=list)
    declarations: list = field(default_factory=list)
    structs: list = field(default_factory=list)
    impls: list = field(default_factory=list)
    functions: list = field(default_factory=list)
    exported_macros: list = field(default_factory=list)

    def with_inline(self):
        yield self
        for inner in self.inline_modules:
            yield from inner.with_inline()


def parse(tokens, name=""):
    scope = Scope(name)
    _Parser(tokens).module(scope, 0, len(tokens))
    return scope


class _Parser:
    def __init__(self, tokens):
        self.tokens = tokens
        self.closing = match_brackets(tokens)

    def text(self, index):
        return self.tokens[index].text if index < len(self.tokens) else ""

    def is_punct(self, index, text):
        return index < len(self.tokens) and self.tokens[index][:2] == (PUNCT, text)

    def module(self, scope, index, end):
        """Parses the items between the indexes."""
        attributes = []
        while index < end:
            if self.is_punct(index, "#"):
                bracket = index + 2 if self.is_punct(index + 1, "!") else index + 1
                after = self.closing[bracket] + 1
                attributes.append(self.tokens[bracket + 1 : after - 1])
                self.code(scope, bracket + 1, after - 1)
                index = after
                continue
            index = self.item(scope, index, end, attributes)
            attributes = []

    def item(self, scope, index, end, attributes):
        """Parses the item at the index; returns the index after it."""
        visibility = ""
        if self.text(index) == "pub":
            visibility = "pub"
            index += 1
            if self.is_punct(index, "("):
                visibility = "restricted"
                index = self.closing[index] + 1
        is_public = visibility == "pub"
        word = self.text(index)
        if word == "use":
            return self.use(scope, index, visibility)
        if word == "macro_rules":
            return self.macro(scope, index, attributes)
        if word == "extern" and self.text(index + 1) == "crate":
            return self.after_semicolon(index, end)
        if word == "mod" and self.is_punct(index + 2, ";"):
            path = next((attribute[2].text.strip('"') for attribute in attributes if attribute[0].text == "path"), None)
            scope.declarations.append(ModuleDeclaration(self.text(index + 1), is_public, path, self.tokens[index].line))
            return index + 3
        if word == "mod" and self.is_punct(index + 2, "{"):
            inner = Scope(self.text(index + 1), is_public)
            scope.inline_modules.append(inner)
            self.module(inner, index + 3, self.closing[index + 2])
            return self.closing[index + 2] + 1
        after = self.end_of_item(index, end)
        keyword = next((at for at in range(index, min(index + 5, after)) if self.text(at) in _NAMED), None)
        if word == "const" and keyword is not None and self.text(index + 1) in {"fn", "unsafe", "async", "extern"}:
            keyword = next(at for at in range(index, after) if self.text(at) == "fn")
        if word != "impl" and keyword is not None:
            scope.names[self.text(keyword + 1)] = is_public
        self.code(scope, index, after)
        return after

    def end_of_item(self, index, end):
        """Returns the index after the item's `;`, or after its braces unless it is a value or an alias."""
        is_value = self.text(index) in {"const", "static", "type"} and self.text(index + 1) not in {
            "fn", "unsafe", "async", "extern",
        }  # fmt: skip
        while index < end:
            if self.is_punct(index, ";"):
                return index + 1
            if index in self.closing:
                is_block = self.is_punct(index, "{")
                index = self.closing[index]
                if is_block and not is_value:
                    return index + 1
            index += 1
        return end

    def after_semicolon(self, index, end):
        while index < end and not self.is_punct(index, ";"):
            index += 1
        return index + 1

    def macro(self, scope, index, attributes):
        """Parses `macro_rules! name {...}`: only the name, because the expansion of the body belongs to its callers."""
        name = self.text(index + 2)
        is_exported = any(attribute and attribute[0].text == "macro_export" for attribute in attributes)
        scope.names[name] = False
        if is_exported:
            scope.exported_macros.append(name)
        after = self.closing[index + 3] + 1
        return after + 1 if self.is_punct(after, ";") else after

    def use(self, scope, index, visibility):
        """Parses a `use` statement; returns the index after its semicolon."""

        def add(path, name, line):
            scope.imports.append(Import(tuple(path), name, visibility != "", visibility == "pub", line))

        index = self.use_tree(index + 1, [], add)
        return index + 1

    def use_tree(self, index, prefix, add):
        path = list(prefix)
        if self.is_punct(index, "::") and not path:
            path.append("")
            index += 1
        while True:
            token = self.tokens[index]
            if self.is_punct(index, "{"):
                end = self.closing[index]
                index += 1
                while index < end:
                    index = self.use_tree(index, path, add)
                    if self.is_punct(index, ","):
                        index += 1
                return end + 1
            if self.is_punct(index, "*"):
                add(path, None, token.line)
                return index + 1
            if not (token.text == "self" and path):
                path.append(token.text)
            index += 1
            if self.is_punct(index, "::"):
                index += 1
                continue
            name = path[-1]
            if self.text(index) == "as":
                name = self.text(index + 1)
                index += 2
            add(path, name, token.line)
            return index

    def code(self, scope, index, end):
        """Finds paths, structs, impl blocks and functions anywhere between the indexes."""
        tokens = self.tokens
        while index < end:
            kind, text, line, _ = tokens[index]
            if kind != WORD:
                index += 1
            elif text == "pub" and self.is_punct(index + 1, "("):
                index = self.closing[index + 1] + 1
            elif text == "use" and not self.is_punct(index + 1, "<"):
                index = self.use(scope, index, "")
            elif text == "macro_rules" and self.is_punct(index + 1, "!"):
                index = self.macro(scope, index, [])
            elif text in _KEYWORDS:
                if text == "fn" and index + 1 < end and tokens[index + 1].kind == WORD:
                    self.function(scope, index, end)
                    index += 1  # its name is not a path
                elif text == "struct":
                    self.struct(scope, index, end)
                elif text == "impl" and self.begins_item(index):
                    self.impl(scope, index, end)
                index += 1
            else:
                index = self.path(scope, index, line)

    def path(self, scope, index, line):
        before = index - 1
        is_member = self.is_punct(before, ".") and not self.is_punct(before - 1, ".")
        is_continued = before >= 0 and self.is_punct(before, "::")
        words = [self.text(index)]
        index += 1
        while self.is_punct(index, "::") and index + 1 < len(self.tokens) and self.tokens[index + 1].kind == WORD:
            words.append(self.text(index + 1))
            index += 2
        if before >= 0 and (is_member or is_continued):
            return index
        # A single lowercase word is usually a variable, unless it is called or is a macro.
        is_lone_variable = len(words) == 1 and not words[0][0].isupper() and self.text(index) not in {"(", "!", "::"}
        if not is_lone_variable:
            scope.paths.setdefault(tuple(words), line)
        return index

    def begins_item(self, index):
        """Whether the `impl` at the index begins a block. Otherwise it is part of a type such as `-> impl Iterator`."""
        return index == 0 or self.text(index - 1) in {"}", ";", "]", "unsafe", "{"}

    def body(self, index, end):
        """Returns the index of the first `{` outside of brackets, or None if a `;` comes first."""
        while index < end:
            if self.is_punct(index, "{"):
                return index
            if self.is_punct(index, ";"):
                return None
            index = self.closing.get(index, index) + 1
        return None

    def function(self, scope, index, end):
        body = self.body(index, end)
        if body is not None:
            line = self.tokens[index].line
            lines = self.tokens[self.closing[body]].line - line + 1
            scope.functions.append(Function(self.text(index + 1), lines, line))

    def struct(self, scope, index, end):
        name, line = self.text(index + 1), self.tokens[index].line
        at, angles = index + 2, 0
        while at < end and (angles or self.text(at) not in {"{", "(", ";"}):
            if not angles and self.text(at) == "where":
                at = self.body(at, end) or end
                break
            if self.tokens[at].kind == PUNCT:
                angles += (self.text(at) == "<") - (self.text(at) == ">")
            at += 1
        count = self.count_fields(at) if at in self.closing else 0
        scope.structs.append(Struct(name, count, line))

    def count_fields(self, bracket):
        count, angles, has_content = 0, 0, False
        index, end = bracket + 1, self.closing[bracket]
        while index < end:
            text = self.text(index)
            if self.is_punct(index, "#"):
                index = self.closing[index + 1] + 1
                continue
            if self.is_punct(index, ",") and angles == 0:
                count += has_content
                has_content = False
            else:
                has_content = True
                if self.tokens[index].kind == PUNCT:
                    angles += (text == "<") - (text == ">")
            index = self.closing.get(index, index) + 1
        return count + has_content

    def impl(self, scope, index, end):
        body = self.body(index, end)
        if body is None:
            return
        line = self.tokens[index].line
        lines = self.tokens[self.closing[body]].line - line + 1
        scope.impls.append(ImplBlock(self.self_type(index + 1, body), lines, line))

    def self_type(self, index, end):
        """Returns `Log` for `impl<T> Trait<T> for &mut module::Log<T> where ...`."""
        angles, name, is_done = 0, "", False
        while index < end:
            kind, text, _, _ = self.tokens[index]
            if kind == PUNCT and text in "<>":
                angles += 1 if text == "<" else -1
            elif angles == 0 and kind == WORD:
                if text == "where":
                    break
                if text == "for":
                    name, is_done = "", False
                elif not is_done and text not in {"dyn", "mut", "crate", "self", "super", "const"}:
                    name = text
            elif angles == 0 and kind == PUNCT and text == "+":
                is_done = True
            index = self.closing.get(index, index) + 1 if text == "(" else index + 1
        return name
