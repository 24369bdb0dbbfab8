"""Splits Rust source into tokens, without comments. A string or a char is one token."""

import re
from typing import NamedTuple

WORD, LITERAL, LIFETIME, PUNCT = "word", "literal", "lifetime", "punct"

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>//[^\n]*)
  | (?P<block>/\*)
  | (?P<raw>(?:br|cr|r)(?P<hashes>\#*)".*?"(?P=hashes))
  | (?P<string>[bc]?"(?:[^"\\]|\\.)*")
  | (?P<char>b?'(?:[^'\\\n]|\\(?:u\{[^}]*\}|x[0-9a-fA-F]{2}|.))')
  | (?P<lifetime>'[^\W\d]\w*)
  | (?P<word>(?:r\#)?[^\W\d]\w*)
  | (?P<number>\d\w*(?:\.\d\w*)?)
  | (?P<punct>::|->|=>|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_BLOCK_EDGE = re.compile(r"/\*|\*/")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    kind: str
    text: str
    line: int  # where it starts, from 1
    last_line: int


def tokenize(source):
    tokens = []
    line, position, end = 1, 0, len(source)
    while position < end:
        match = _TOKEN.match(source, position)
        kind, text = match.lastgroup, match.group()
        position = match.end()
        if kind == "word":
            tokens.append(Token(WORD, text.removeprefix("r#"), line, line))
        elif kind == "punct":
            tokens.append(Token(PUNCT, text, line, line))
        elif kind == "space":
            line += text.count("\n")
        elif kind == "block":
            position = _end_of_block_comment(source, position)
            line += source.count("\n", match.start(), position)
        elif kind == "lifetime":
            tokens.append(Token(LIFETIME, text, line, line))
        elif kind != "comment":
            last_line = line + text.count("\n")
            tokens.append(Token(LITERAL, text, line, last_line))
            line = last_line
    return tokens


def _end_of_block_comment(source, position):
    """Block comments nest. `position` is after the first `/*`."""
    depth = 1
    while depth:
        match = _BLOCK_EDGE.search(source, position)
        if match is None:
            return len(source)
        depth += 1 if match.group() == "/*" else -1
        position = match.end()
    return position


def match_brackets(tokens):
    """Maps the index of each opening bracket to the index of its closing bracket."""
    closing, open_indexes = {}, []
    for index, token in enumerate(tokens):
        if token.kind != PUNCT:
            continue
        if token.text in _PAIRS:
            open_indexes.append(index)
        elif token.text in ")]}":
            if not open_indexes or _PAIRS[tokens[open_indexes[-1]].text] != token.text:
                raise ValueError(f"line {token.line}: unexpected {token.text!r}")
            closing[open_indexes.pop()] = index
    if open_indexes:
        token = tokens[open_indexes[-1]]
        raise ValueError(f"line {token.line}: {token.text!r} is not closed")
    return closing
