"""Finds the settings of a module by its name, which plans and files may write with a prefix.

Settings name modules as their writer saw them: with or without the prefix of the text model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
_OUTER = ("model", "language_model", "transformer")
_PREFIXES = ("", "model.", "transformer.", "language_model.model.", "model.language_model.")
_TABLES = frozenset({"wte", "wpe"})


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
        self._by_end: dict[str, str] = {}
        for name in settings:
            self._by_end.setdefault(_end(name), name)

    def get(self, module: str) -> Settings | None:
        if module in self._settings:
            return self._settings[module]
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
    return any(pattern.match(name) for name in _names(module))


def is_listed(module: str, listed: Iterable[str]) -> bool:
    """Whether `modules_to_not_convert` lists a module, or a module around it.

    An entry is the module's name, its first parts (also as a regular expression), its end, or
    parts in the middle.
    """
    return any(_lists(module, entry) for entry in listed)


def check_listed(listed: Iterable[str], where: str) -> None:
    """Check the entries of `is_listed`; those that are no regular expressions are names.

    Args:
        where: names the list.

    Raises:
        ValueError: expressions among them would take long to match.
    """
    check_expressions((text for entry in listed if (text := _start_of(_key(entry)))), where)


def _lists(module: str, entry: str) -> bool:
    key = _key(entry)
    if not key:
        return False
    if module.endswith(key) or f".{key}." in f".{module}.":
        return True
    start = _start_of(key)
    return start is not None and any(expression(start).match(name) for name in _names(module))


def _key(entry: str) -> str:
    return entry.removesuffix(".weight").strip(".")


@lru_cache(maxsize=20_000)
def _start_of(key: str) -> str | None:
    """The expression of modules whose first parts an entry is; None: it is no expression."""
    text = rf"(?:{key})(?:\.|$)"
    try:
        expression(text)
    except ValueError:
        return None
    return text


@lru_cache(maxsize=100)
def _names(module: str) -> tuple[str, ...]:
    """The names that the module may have had where the configuration was written."""
    plain = plain_name(module)
    return tuple(dict.fromkeys((module, *(prefix + plain for prefix in _PREFIXES))))
