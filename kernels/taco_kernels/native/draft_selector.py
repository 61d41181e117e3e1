"""Selects which draft tokens of a step are worth verifying, to maximize tokens per second.

C++ does the work (csrc/drafts/draft_selector.h); this module passes pointers.
"""

import weakref
from ctypes import Structure, byref, c_double, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taco_kernels.library import library_keeping_gil
from taco_kernels.native.draft_trees import DraftTrees, IntArray, are_columns, view

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SelectedDrafts:
    """The part of some trees that is worth verifying.

    Attributes:
        gain: expected speed-up over a step without drafts, drafting time included; 1 before any
            step has been measured.
        plain_seconds: expected time of a step without drafts; 0 before any step has been measured.
    """

    trees: DraftTrees
    gain: float
    plain_seconds: float


class DraftSelector:
    """Learns acceptance rates and step times, and selects drafts by them.

    Calls take microseconds and keep the GIL. Not thread safe.
    """

    def __init__(self, priors: npt.NDArray[np.float32], num_slots: int) -> None:
        """
        Args:
            priors: float32 [num_classes], assumed acceptance rate of each class before any
                draft has been seen.

        Raises:
            KernelLibraryError: the library cannot be loaded.
        """
        self._lib = library_keeping_gil()
        priors = np.ascontiguousarray(priors, dtype=np.float32)
        create = self._lib.taco_draft_selector_create
        self._selector = c_void_p(create(priors.ctypes.data, priors.size, num_slots))
        weakref.finalize(self, self._lib.taco_draft_selector_destroy, self._selector).atexit = False

    def start(self, slots: IntArray) -> None:
        """Reset the statistics of slots that now hold other sequences."""
        self._lib.taco_draft_selector_start(self._selector, slots.ctypes.data, slots.size)

    def select(
        self,
        trees: DraftTrees,
        slots: IntArray,
        *,
        num_other_tokens: int,
        has_one_path: BoolArray | None = None,
        max_branches: int = 0,
        draft_seconds: float = 0.0,
    ) -> SelectedDrafts:
        """Select the part of well-formed trees that is worth verifying.

        Args:
            slots: int32 [num_rows]; a row without nodes counts, since it produces a token too.
            num_other_tokens: tokens that the step computes besides drafts.
            has_one_path: rows that may not have branches; None: all may.
            max_branches: limit over all rows; rows beyond it keep their first path alone.
            draft_seconds: time that drafting took.

        Raises:
            ValueError: a column has another type.
        """
        _check(slots, *trees.columns())
        if has_one_path is None:
            has_one_path = np.zeros(slots.size, dtype=np.bool_)
        limits = _Limits(has_one_path.ctypes.data, max_branches, num_other_tokens, draft_seconds)
        columns = np.empty((3, trees.token_ids.size), dtype=np.int32)
        num_nodes = np.empty(slots.size, dtype=np.int32)
        first, step = columns.ctypes.data, columns.strides[0]
        chosen = _Selected(num_nodes.ctypes.data, first, first + step, first + 2 * step)
        count = self._lib.taco_draft_selector_select(
            self._selector, byref(view(trees, slots)), byref(limits), byref(chosen)
        )
        token_ids, parents, classes = (column[:count] for column in columns)
        kept = DraftTrees(num_nodes, token_ids, parents, classes)
        return SelectedDrafts(kept, chosen.gain, chosen.plain_seconds)

    def learn(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        """Learn from the tokens that rows received, `num_tokens` each; other rows are ignored."""
        _check(slots, num_tokens, token_ids)
        self._lib.taco_draft_selector_learn(
            self._selector,
            slots.ctypes.data,
            num_tokens.ctypes.data,
            token_ids.ctypes.data,
            slots.size,
        )

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """Record that a step of `num_tokens` tokens took `seconds`."""
        self._lib.taco_draft_selector_observe_step(self._selector, num_tokens, seconds)

    @property
    def is_ready(self) -> bool:
        """Whether any step has been measured."""
        return bool(self._lib.taco_draft_selector_is_ready(self._selector))

    def step_seconds(self, first: int, count: int) -> npt.NDArray[np.float64]:
        """Expected seconds of steps of `first`, `first` + 1, … tokens, `count` of them.

        Raises:
            ValueError: no step has been measured.
        """
        if not self.is_ready:
            raise ValueError("no step has been measured")
        seconds = np.empty(count)
        self._lib.taco_draft_selector_estimate(self._selector, first, count, seconds.ctypes.data)
        return seconds

    def probabilities(self, trees: DraftTrees, slots: IntArray) -> npt.NDArray[np.float64]:
        """[sum(num_nodes)], the probability that each node and all its ancestors are accepted."""
        probabilities = np.empty(trees.token_ids.size)
        self._lib.taco_draft_selector_probabilities(
            self._selector, byref(view(trees, slots)), probabilities.ctypes.data
        )
        return probabilities


def _check(*columns: npt.NDArray[np.generic]) -> None:
    if not are_columns(*columns):
        raise ValueError("drafts, slots and tokens must be contiguous int32 columns")


class _Limits(Structure):
    _fields_ = (
        ("has_one_path", c_void_p),
        ("max_branches", c_int64),
        ("num_other_tokens", c_int64),
        ("draft_seconds", c_double),
    )


class _Selected(Structure):
    _fields_ = (
        ("num_nodes", c_void_p),
        ("token_ids", c_void_p),
        ("parents", c_void_p),
        ("classes", c_void_p),
        ("gain", c_double),
        ("plain_seconds", c_double),
    )
