"""The masks of one sequence in one step: after its last token, and after each of its drafts."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taco_proto.grammars import MAX_FORCED_TOKENS
from taco_proto.steps import RowErrorCode
from taco_worker.grammars.matcher import Matcher

Array = npt.NDArray[Any]

# How the library's message of an exceeded limit begins; its stop reason does not tell.
_LIMIT_ERRORS = ("parser error: ", "lexer error: ", "Parser Error: Current row has ")
_NO_TOKEN = (
    "no token of the model's vocabulary continues the text as the grammar of this request demands"
)
_LIMIT = "the grammar of this request is too complex: its parser exceeded a limit"
_LONG = f"the grammar of this request forces a text of more than {MAX_FORCED_TOKENS} tokens"


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of draft tokens in depth-first order.

    Attributes:
        parents: the node before each node, -1 for children of the sequence's last token.
    """

    token_ids: list[int]
    parents: list[int]


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Masks after the sequence's last token and after each draft.

    The mask after a draft that the grammar forbids is that of the last token: verification never
    reaches it.

    Attributes:
        bits: int32 [1 + number of drafts, num_words].
        is_complete: bool [1 + number of drafts]: only end tokens are allowed.
        error: why the sequence has to end, for its client; empty: it continues.
        is_certain: a matcher with its own limits would fail as well.
        failed_draft: None: the sequence ends whatever follows, and its masks allow end tokens.
            Otherwise `error` counts only if verification reaches this draft.
    """

    bits: Array
    is_complete: Array
    error: str = ""
    error_code: RowErrorCode = RowErrorCode.UNKNOWN
    is_certain: bool = False
    failed_draft: int | None = None

    @classmethod
    def of(
        cls,
        matcher: Matcher,
        unread: list[int],
        draft: Draft,
        eos_mask: Array,
        *,
        num_generated: int,
        min_tokens: int,
        ignores_eos: bool,
        failed_drafts: Container[int] = (),
    ) -> RowMasks:
        """Let the matcher read tokens, and compute the masks. Drafts leave no trace in it.

        A draft after which the matcher fails spoils the matcher: then the result has an error and
        no masks. Compute them with another matcher, and with this draft in `failed_drafts`.

        Args:
            unread: committed tokens that the matcher has not read.
            eos_mask: int32 [num_words], the end tokens.
            num_generated: committed tokens that the sequence has generated.
            min_tokens, ignores_eos: while they hold, end tokens are masked, except where the text
                is complete.
            failed_drafts: their masks, and those of the drafts behind them, allow no token.
        """
        bits = np.empty((1 + len(draft.token_ids), eos_mask.size), dtype=np.int32)
        is_complete = np.zeros(bits.shape[0], dtype=np.bool_)

        def fill(row: int, depth: int) -> bool:
            """Compute one mask; False if the matcher failed."""
            mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            if matcher.is_error():
                return False
            width = min(mask.size, eos_mask.nbytes)
            bits[row] = 0
            bits[row].view(np.uint8)[:width] = mask[:width]
            others = bits[row] & ~eos_mask
            has_others = bool(others.any())
            is_complete[row] = not has_others
            if has_others and (ignores_eos or num_generated + depth < min_tokens):
                bits[row] = others
            if has_others and _is_one(others) and _forces_long_text(matcher):
                return False
            return bool(bits[row].any())

        if (unread and not matcher.consume_tokens(unread)) or not fill(0, 0):
            return cls._failed(matcher, bits, eos_mask, None)
        path: list[int] = []  # nodes that the matcher has read
        for node, (token_id, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
            bits[node + 1], is_complete[node + 1] = bits[0], is_complete[0]
            if node in failed_drafts or not bits[parent + 1].any():
                bits[node + 1] = 0
                continue
            depth = path.index(parent) + 1 if parent >= 0 and parent in path else 0
            if parent >= 0 and not depth:
                continue  # behind a forbidden draft
            if depth < len(path):
                matcher.rollback(len(path) - depth)
                del path[depth:]
            allowed = bits[parent + 1]
            if not allowed[token_id // 32] >> (token_id % 32) & 1 or is_complete[parent + 1]:
                continue
            if eos_mask[token_id // 32] >> (token_id % 32) & 1:
                continue  # nothing follows the end
            path.append(node)
            if not matcher.consume_token(token_id) or not fill(node + 1, len(path)):
                return cls._failed(matcher, bits, eos_mask, node)
        if path:
            matcher.rollback(len(path))
        return cls(bits, is_complete)

    @classmethod
    def _failed(
        cls, matcher: Matcher, bits: Array, eos_mask: Array, failed_draft: int | None
    ) -> RowMasks:
        is_long = not matcher.is_error() and _forces_long_text(matcher)
        is_limit = is_long or matcher.get_error().startswith(_LIMIT_ERRORS)
        bits[:] = eos_mask
        return cls(
            bits,
            np.ones(bits.shape[0], dtype=np.bool_),
            _LONG if is_long else _LIMIT if is_limit else _NO_TOKEN,
            RowErrorCode.GRAMMAR_LIMIT if is_limit else RowErrorCode.NO_ALLOWED_TOKEN,
            is_long,
            failed_draft,
        )


def _is_one(mask: Array) -> bool:
    """Whether a mask that allows tokens allows one."""
    (places,) = mask.nonzero()
    return places.size == 1 and int(mask.view(np.uint32)[places[0]]).bit_count() == 1


def _forces_long_text(matcher: Matcher) -> bool:
    return len(matcher.compute_ff_tokens()) > MAX_FORCED_TOKENS
