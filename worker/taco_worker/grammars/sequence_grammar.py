"""The grammar of one sequence: a matcher that has read the sequence's committed tokens."""

from __future__ import annotations

from collections.abc import Container
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from taco_proto.steps import RowErrorCode
from taco_worker.grammars.compiled_grammar import CompiledGrammar
from taco_worker.grammars.matcher import Matcher
from taco_worker.grammars.row_masks import Array, Draft, RowMasks


@dataclass(slots=True)
class SequenceGrammar:
    """Follows one sequence. Used by one thread at a time.

    A matcher is a copy, made at the first use, that shares the library's limits with other copies.
    Where it fails, a matcher with separate limits reads the text again. So a failure depends on
    this sequence alone.

    Attributes:
        num_tokens: tokens of the sequence that have been handed to it.
        unread: tokens that the matcher has not read.
        matcher: None before the first use.
    """

    compiled: Future[CompiledGrammar]
    num_prompt_tokens: int
    num_tokens: int
    unread: list[int]
    min_tokens: int
    ignores_eos: bool
    matcher: Matcher | None = None
    _read: list[int] = field(default_factory=list)
    _shares_limits: bool = True

    def rebuild_after_error(self) -> None:
        """Begin with a new matcher if a draft took this one over a limit: it would stay failed."""
        if self.matcher is not None and self.matcher.is_error():
            self._start_again()

    def read(self) -> Matcher:
        """The matcher, after it has read what it had not."""
        matcher, unread = self._begin_reading()
        if unread and not matcher.consume_tokens(unread) and self._shares_limits:
            matcher, unread = self._begin_alone()
            matcher.consume_tokens(unread)
        return matcher

    def masks(self, draft: Draft, eos_mask: Array) -> RowMasks:
        """The masks after the sequence's last token and after each of its drafts.

        A draft that the grammar cannot continue spoils the matcher: another one reads the text.

        Args:
            eos_mask: int32 [num_words], the end tokens.
        """
        failed: dict[int, RowMasks] = {}  # by draft
        while True:
            masks = self._masks_of(*self._begin_reading(), draft, eos_mask, failed)
            if not masks.error:
                break
            is_dead_end = masks.error_code is RowErrorCode.NO_ALLOWED_TOKEN
            fails_alone = masks.is_certain or not self._shares_limits
            if masks.failed_draft is not None and (is_dead_end or fails_alone):
                failed[masks.failed_draft] = masks
            elif fails_alone:
                return masks
            else:
                self._shares_limits = False
            self._start_again()
        first = next(iter(failed.values()), masks)
        return replace(first, bits=masks.bits, is_complete=masks.is_complete)

    def _begin_reading(self) -> tuple[Matcher, list[int]]:
        if self.matcher is None:
            compiled = self.compiled.result()
            self.matcher = compiled.copy() if self._shares_limits else compiled.separate()
        unread, self.unread = self.unread, []
        self._read += unread
        return self.matcher, unread

    def _begin_alone(self) -> tuple[Matcher, list[int]]:
        self._shares_limits = False
        self._start_again()
        return self._begin_reading()

    def _start_again(self) -> None:
        self.matcher = None
        self.unread, self._read = self._read + self.unread, []

    def _masks_of(
        self,
        matcher: Matcher,
        unread: list[int],
        draft: Draft,
        eos_mask: Array,
        failed_drafts: Container[int],
    ) -> RowMasks:
        return RowMasks.of(
            matcher,
            unread,
            draft,
            eos_mask,
            num_generated=self.num_tokens - self.num_prompt_tokens,
            min_tokens=self.min_tokens,
            ignores_eos=self.ignores_eos,
            failed_drafts=failed_drafts,
        )
