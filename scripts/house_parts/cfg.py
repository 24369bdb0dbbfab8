"""Separates test code from a file's tokens: everything that `#[cfg(...)]` compiles only for tests."""

from .tokens import LITERAL, PUNCT, WORD, match_brackets

TEST_FEATURE = "test-util"
_TEST_NAMES = {"test", "doctest"}
_ITEM_WORDS = {
    "async", "const", "enum", "extern", "fn", "impl", "let", "macro_rules", "mod", "static", "struct", "trait", "type",
    "union", "unsafe", "use",
}  # fmt: skip
# These end with `;`, even if they contain braces.
_STATEMENT_WORDS = {"const", "let", "static", "type", "use"}


def split(tokens):
    """Returns the tokens of the product code, and one list of tokens per piece of test code, with its attribute."""
    closing = match_brackets(tokens)
    if _is_test_file(tokens, closing):
        return [], [tokens]
    product, pieces, index, attributes_from = [], [], 0, None
    while index < len(tokens):
        if not _is_attribute(tokens, index):
            attributes_from = None
            product.append(tokens[index])
            index += 1
            continue
        if attributes_from is None:
            attributes_from = len(product)
        after = closing[index + 1] + 1
        if is_test_only(tokens[index + 2 : after - 1]):
            # The attributes before this one belong to the same item.
            earlier = product[attributes_from:]
            del product[attributes_from:]
            after = _end_of_item(tokens, closing, after)
            pieces.append(earlier + tokens[index:after])
            attributes_from = None
        else:
            product.extend(tokens[index:after])
        index = after
    return product, pieces


def is_test_only(attribute):
    """Whether the attribute, given as the tokens between its brackets, is a cfg that is false in a product build."""
    if len(attribute) < 3 or attribute[0].text != "cfg":
        return False
    value, _ = _evaluate(attribute, 2)
    return value is False


def _evaluate(tokens, index):
    """The value of a cfg predicate in a product build (None if it depends on the build), and the index after it."""
    name = tokens[index].text
    index += 1
    following = tokens[index].text if index < len(tokens) else ""
    if following == "=":
        value = tokens[index + 1].text.strip('"')
        return (False if name == "feature" and value == TEST_FEATURE else None), index + 2
    if following != "(":
        return (False if name in _TEST_NAMES else None), index
    index += 1
    values = []
    while tokens[index].text != ")":
        if tokens[index].text == ",":
            index += 1
            continue
        value, index = _evaluate(tokens, index)
        values.append(value)
    if name == "not":
        value = None if values[0] is None else not values[0]
    elif name == "all":
        value = False if False in values else (None if None in values else True)
    else:
        value = True if True in values else (None if None in values else False)
    return value, index + 1


def _is_test_file(tokens, closing):
    """Whether the file begins with `#![cfg(test)]`, after other inner attributes."""
    index = 0
    while [token.text for token in tokens[index : index + 3]] == ["#", "!", "["]:
        end = closing[index + 2]
        if is_test_only(tokens[index + 3 : end]):
            return True
        index = end + 1
    return False


def _is_attribute(tokens, index):
    return (
        tokens[index].text == "#"
        and tokens[index].kind == PUNCT
        and index + 1 < len(tokens)
        and tokens[index + 1].text == "["
    )


def _end_of_item(tokens, closing, index):
    """The index after the item, field, variant, match arm or statement that begins at `index`."""
    while index < len(tokens) and _is_attribute(tokens, index):
        index = closing[index + 1] + 1
    if index < len(tokens) and tokens[index].text == "pub":
        index += 1
        if tokens[index].text == "(":
            index = closing[index] + 1
    first = tokens[index] if index < len(tokens) else None
    is_item = first is not None and first.kind == WORD and first.text in _ITEM_WORDS
    is_statement = (
        is_item and first.text in _STATEMENT_WORDS and tokens[index + 1].text not in {"fn", "unsafe", "async"}
    )
    is_field = not is_item and index + 1 < len(tokens) and tokens[index + 1].text == ":"
    angles = 0
    while index < len(tokens):
        token = tokens[index]
        if token.kind in (LITERAL, WORD):
            index += 1
        elif token.text in ")]}":
            return index
        elif token.text == ";" or (token.text == "," and not is_item and angles <= 0):
            return index + 1
        elif index in closing:
            is_block = token.text == "{"
            index = closing[index] + 1
            if is_block and not is_statement:
                is_comma = index < len(tokens) and tokens[index].text == ","
                return index + 1 if is_comma and not is_item else index
        else:
            if is_field:
                angles += (token.text == "<") - (token.text == ">")
            index += 1
    return index
