"""Finds the settings of a module by its name, which plans and files may write with a prefix.

Settings name modules as their writer saw them: with or without the prefix of the text model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Generic, TypeVar

from taco_worker.quant.expressions import check_expressions, expression

Settings = TypeVar("Settings")

# Parts of the names of embeddings, LM heads and routers, which methods at load leave as they are.
_ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
_OTHERS = _ROUTERS | frozenset(
    {
        *("lm_head", "embed_out", "output_layer", "output"),
        *("embed_tokens", "embed_positions", "embed_in", "wte", "wpe", "tok_embeddings"),
        *("word_embeddings", "embedding", "embeddings"),
    }
)
_OUTER = ("model", "language_model", "text_model", "transformer")
_PREFIXES = (
    *("", "model.", "transformer."),
    *("language_model.model.", "model.language_model.", "model.text_model."),
)
_TABLES = frozenset({"wte", "wpe"})
_PLAIN = re.compile(r"[\w.-]*")


def is_linear(module: str) -> bool:
    """Whether a matrix is that of a linear layer or an expert: no LM head, router or embedding."""
    return _OTHERS.isdisjoint(module.split("."))


class ByModule(Generic[Settings]):
    """Settings by the names of modules in a checkpoint's files.

    Files may write `language_model.model.layers.0.mlp.up_proj` where the plan has
    `model.layers.0.mlp.up_proj`, and the other way round.
    """

    def __init__(self, settings: Mapping[str, Settings]) -> None:
        self._settings = settings
        self._by_plain_name: dict[str, str] = {}
        self._by_end: dict[str, str] = {}
        for name in settings:
            self._by_plain_name.setdefault(plain_name(name), name)
            self._by_end.setdefault(_end(name), name)

    def get(self, module: str) -> Settings | None:
        if module in self._settings:
            return self._settings[module]
        # By the end alone, a layer for images may have the name of one for text.
        if (stored := self._by_plain_name.get(plain_name(module))) is not None:
            return self._settings[stored]
        stored = self._by_end.get(_end(module))
        if stored is None or not (stored.endswith(f".{module}") or module.endswith(f".{stored}")):
            return None
        return self._settings[stored]


def _end(name: str) -> str:
    """The name from the first number of a layer on, or its last part."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[first - 1 :])


def plain_name(name: str) -> str:
    """The name without the prefixes of the text model: `model.layers.0` is `layers.0`."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part not in _OUTER), 0)
    return ".".join(parts[first:])


def is_embedding(module: str) -> bool:
    """Whether a module's matrix is a table of vectors, not one of a linear layer."""
    last = module.rsplit(".", 1)[-1]
    return last in _TABLES or ("embed" in last and last != "embed_out")


def is_router(module: str) -> bool:
    """Whether a module's matrix chooses experts."""
    return module.rsplit(".", 1)[-1] in _ROUTERS


def matches_name(module: str, target: str) -> bool:
    """Whether `target` is the module's name, or "re:" and an expression that its start matches.

    Raises:
        ValueError: the expression is invalid, or takes too long.
    """
    if not target.startswith("re:"):
        return plain_name(target) == plain_name(module)
    pattern = expression(target.removeprefix("re:"))
    return any(pattern.match(name) for name in possible_names(module))


def is_listed(module: str, listed: Iterable[str]) -> bool:
    """Whether `modules_to_not_convert` lists a module, or a module around it.

    An entry is the module's name, its first parts (also as a regular expression), its end, or
    parts in the middle.
    """
    return _listing(tuple(listed)).lists(module)


def check_listed(listed: Iterable[str], where: str) -> None:
    """Check the entries of `is_listed`; those that are no regular expressions are names.

    Args:
        where: names the list.

    Raises:
        ValueError: expressions among them would take long to match.
    """
    check_expressions(filter(None, map(_start_of, _keys(listed))), where)


class _Listing:
    """Entries of `modules_to_not_convert`, of which there may be thousands."""

    def __init__(self, entries: Iterable[str]) -> None:
        keys = _keys(entries)
        self._keys = frozenset(keys)
        self._ends = tuple(keys)
        self._starts = list(filter(None, map(_start_of, keys)))

    def lists(self, module: str) -> bool:
        if module.endswith(self._ends) or not self._keys.isdisjoint(_sequences(module)):
            return True
        names = possible_names(module)
        # The first parts of a name with another prefix.
        if any(not self._keys.isdisjoint(_first_parts(name)) for name in names):
            return True
        return any(expression(start).match(name) for start in self._starts for name in names)


_listing = lru_cache(maxsize=16)(_Listing)


def _keys(entries: Iterable[str]) -> list[str]:
    keys = (entry.removesuffix(".weight").strip(".") for entry in entries)
    return [key for key in keys if key]


def _first_parts(name: str) -> Iterator[str]:
    """The name's first part, its first two parts, and so on."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _sequences(name: str) -> Iterator[str]:
    """Each sequence of adjacent parts of a name."""
    parts = name.split(".")
    return (one for first in range(len(parts)) for one in _first_parts(".".join(parts[first:])))


def _start_of(key: str) -> str | None:
    """The expression of modules whose first parts an entry is; None: it is a name."""
    if _PLAIN.fullmatch(key):
        return None
    text = rf"(?:{key})(?:\.|$)"
    try:
        expression(text)
    except ValueError:
        return None
    return text


@lru_cache(maxsize=100)
def possible_names(module: str) -> tuple[str, ...]:
    """The names that the module may have had where the configuration was written."""
    plain = plain_name(module)
    return tuple(dict.fromkeys((module, *(prefix + plain for prefix in _PREFIXES))))
