"""Regular expressions, also patterns of JSON schemas, in Lark's notation as llguidance reads it."""

import re

_WRITTEN = {"/": r"\/", "\n": r"\n", "\r": r"\r"}
_UNWRITTEN = re.compile(r"\\?[/\n\r]|\\.", re.DOTALL)
# An escape, the beginning of a class with a bracket that does not end it, or one character.
_TOKEN = re.compile(r"\\.|\[\^?\]?|.", re.DOTALL)
_FLAGS = re.compile(r"\(\?[is]+\)")
_ANY_TEXT = "(?s:.*)"


def regex(pattern: str) -> str:
    """An expression for a regular expression, which has not been checked."""
    escaped = _UNWRITTEN.sub(lambda found: _WRITTEN.get(found[0][-1], found[0]), pattern)
    return f"/{escaped}/"


def search(pattern: str) -> str:
    """An expression for texts that contain a match of a JSON schema's pattern.

    Lark's expressions match the whole text, and know no anchors inside. So text may surround each
    alternative, except on the side of its anchor.
    """
    flags = _FLAGS.match(pattern)
    shared = flags[0] if flags else ""
    found = (_searched(tokens, shared) for tokens in _alternatives(pattern.removeprefix(shared)))
    return regex("|".join(found))


def _searched(tokens: list[str], flags: str) -> str:
    before = after = _ANY_TEXT
    if tokens[:1] == ["^"]:
        before, tokens = "", tokens[1:]
    if tokens[-1:] == ["$"]:
        after, tokens = "", tokens[:-1]
    return f"{before}(?:{flags}{''.join(tokens)}){after}"


def _alternatives(pattern: str) -> list[list[str]]:
    """The alternatives of a pattern that are in no group, each in tokens."""
    found: list[list[str]] = [[]]
    num_classes = num_groups = 0  # that are open
    for token in _TOKEN.findall(pattern):
        if token.startswith("["):
            num_classes += 1
        elif num_classes:
            num_classes -= token == "]"
        elif token == "|" and not num_groups:
            found.append([])
            continue
        else:
            num_groups += (token == "(") - (token == ")")
        found[-1].append(token)
    return found
