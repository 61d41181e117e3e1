"""Reads the fields of a structural tag, with errors that name their path."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from taco_gateway.text.grammar.canonical import ConstraintError

# No answer is longer: such a limit has no effect.
_NO_LIMIT = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTokens:
    """The tokens that matter in a structural tag.

    Attributes:
        without_text: ids, by spelling, of the tokens that no text of a grammar contains.
        end_ids: tokens that end the answer.
        vocab_size: number of token ids.
    """

    without_text: Mapping[str, int] = field(default_factory=dict)
    end_ids: frozenset[int] = frozenset()
    vocab_size: int = 0

    def id_of(self, token: Any, path: str) -> int:
        """The id of a token that is given by its id or its text.

        Raises:
            ConstraintError: there is no such token.
        """
        if isinstance(token, str):
            found = self.without_text.get(token)
            if found is None:
                raise ConstraintError(
                    f"{path}: {token!r} is no special token of the model; give the token's id"
                )
            return found
        if not _is_integer(token) or not 0 <= token < self.vocab_size:
            raise ConstraintError(
                f"{path} must be the text of a special token, or a token id below {self.vocab_size}"
            )
        return token


def listed(form: Mapping[str, Any], name: str, path: str) -> list[Any]:
    """A list that is not empty."""
    found = form.get(name)
    if not isinstance(found, list) or not found:
        raise ConstraintError(f"{path}.{name} must be a list that is not empty")
    return found


def optional_list(form: Mapping[str, Any], name: str, path: str) -> list[Any]:
    """A list; without the field an empty one."""
    found = form.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise ConstraintError(f"{path}.{name} must be a list")
    return found


def text(form: Any, name: str, path: str) -> str:
    found = form.get(name) if isinstance(form, Mapping) else None
    if not isinstance(found, str):
        raise ConstraintError(f"{path}.{name} must be a string")
    return found


def switch(form: Mapping[str, Any], name: str, path: str, default: bool = False) -> bool:
    found = form.get(name, default)
    if not isinstance(found, bool):
        raise ConstraintError(f"{path}.{name} must be true or false")
    return found


def limit(form: Mapping[str, Any], name: str, path: str, most: int | None = None) -> int | None:
    """A number of tokens or characters; None: no limit.

    Args:
        most: the largest number that is supported; None: a larger one than any answer is no limit.
    """
    found = form.get(name)
    if found is None:
        return None
    if not _is_integer(found) or found < 0:
        raise ConstraintError(f"{path}.{name} must be an integer of at least 0, or null")
    if most is not None and found > most:
        raise ConstraintError(f"{path}.{name} must be at most {most}")
    return found if found < _NO_LIMIT else None


def bounds(form: Mapping[str, Any], path: str) -> tuple[int, int | None]:
    """The `min` and `max` of a repetition; a `max` of -1 is None: no limit."""
    least, most = form.get("min"), form.get("max")
    if not _is_integer(least) or not 0 <= least < _NO_LIMIT:
        raise ConstraintError(f"{path}.min must be an integer from 0 to {_NO_LIMIT - 1}")
    if not _is_integer(most) or (most != -1 and most < least):
        raise ConstraintError(f"{path}.max must be an integer of at least min, or -1")
    return least, None if most == -1 or most >= _NO_LIMIT else most


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
