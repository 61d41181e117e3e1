"""Makes the grammars of structural tags: free text in which triggers begin constrained parts.

Both forms are read: `structures` with `triggers`, and the newer `format`, an object with a `type`
(xgrammar's documentation, "Structural Tag").
"""

import json
from collections.abc import Mapping
from typing import Any

from taco_gateway.text.grammar.canonical import ConstraintError
from taco_gateway.text.grammar.lark_builder import LarkBuilder, LarkGrammar
from taco_gateway.text.grammar.tag_fields import TagTokens, listed
from taco_gateway.text.grammar.tag_formats import TagFormats

KIND = "structural_tag"


def structural_tag_grammar(value: Any, tokens: TagTokens) -> LarkGrammar:
    """The grammar of a structural tag, an object or its JSON text.

    Raises:
        ConstraintError: it is invalid, or has a part that is not supported. The message names the
            path.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"it is not valid JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ConstraintError("it must be an object")
    lark = LarkBuilder(_named_tokens(value, tokens), "tag")
    formats = TagFormats(lark, tokens, KIND)
    if "format" in value:
        return lark.grammar(formats.answer(value["format"], f"{KIND}.format"))
    structures = listed(value, "structures", KIND)
    if not all(isinstance(structure, Mapping) for structure in structures):
        raise ConstraintError(f"{KIND}.structures: each of them must be an object")
    tags = [
        {
            "begin": structure.get("begin"),
            "content": {"type": "json_schema", "json_schema": structure.get("schema", {})},
            "end": structure.get("end"),
        }
        for structure in structures
    ]
    form = {"type": "triggered_tags", "triggers": value.get("triggers"), "structures": tags}
    return lark.grammar(formats.answer(form, KIND, tags_field="structures"))


def _named_tokens(value: Mapping[str, Any], tokens: TagTokens) -> dict[str, int]:
    """The tokens without text that a structural tag names by text or number."""
    texts: list[str] = []
    numbers: set[int] = set()
    level: list[Any] = [value]
    while level:
        part = level.pop()
        if isinstance(part, Mapping):
            level += part.values()
        elif isinstance(part, list):
            level += part
        elif isinstance(part, str):
            texts.append(part)
        elif isinstance(part, int):
            numbers.add(part)
    whole = "\0".join(texts)
    return {
        text: token_id
        for text, token_id in tokens.without_text.items()
        if token_id in numbers or text in whole
    }
