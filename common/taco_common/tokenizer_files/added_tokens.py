"""Added tokens: texts that are one token each, found before the rest of a text is split."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """An entry of `added_tokens` in tokenizer.json.

    Attributes:
        special: decoding can leave it out, and plain text cannot contain it.
        single_word: not found inside a word.
        lstrip, rstrip: it includes the spaces on that side.
        normalized: it is found in the normalized text, not in the text as given.
    """

    id: int
    content: str
    special: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False

    def entry(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def special_tokens(texts: Iterable[str], first_id: int) -> dict[int, AddedToken]:
    """Special tokens with consecutive ids."""
    return {i: AddedToken(id=i, content=text) for i, text in enumerate(texts, first_id)}


def configured_tokens(settings: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The added tokens that a checkpoint lists, by id.

    They are found in the text as given, as in transformers' tokenizers in Python, whatever
    `normalized` says.

    Args:
        settings: content of tokenizer_config.json; its `added_tokens_decoder` has entries by id.
        ids: content of added_tokens.json, ids by text.

    Raises:
        ValueError: an entry is invalid.
    """
    named = {_content(value) for key, value in settings.items() if key.endswith("_token")}
    named |= {_content(token) for token in settings.get("additional_special_tokens") or ()}
    tokens = {
        _id(number): AddedToken(id=_id(number), content=text, special=text in named)
        for text, number in ids.items()
    }
    for key, entry in (settings.get("added_tokens_decoder") or {}).items():
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise ValueError(f"added_tokens_decoder has an entry {key!r} without content")
        flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip")}
        text = entry["content"]
        special = bool(entry.get("special")) or text in named
        tokens[_id(key)] = AddedToken(id=_id(key), content=text, special=special, **flags)
    return tokens


def check_unique(tokens: Iterable[AddedToken], texts: Mapping[str, int]) -> None:
    """Raises ValueError if a token has the text of another id in the vocabulary `texts`."""
    for token in tokens:
        other = texts.get(token.content, token.id)
        if other != token.id:
            raise ValueError(f"the token {token.content!r} has the ids {other} and {token.id}")


def _content(token: Any) -> Any:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _id(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 2**24:
        raise ValueError(f"an added token has the id {value!r}, which is out of range")
    return number
