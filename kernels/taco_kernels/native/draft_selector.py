"""Which drafts are worth verifying: see csrc/drafts/draft_selector.h. This side passes pointers."""

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
    """What is worth verifying of some trees.

    Attributes:
        gain: tokens a second that drafting promises, the time to make the drafts included, over
            those of a step without any; 1 before a step has been measured.
        plain_seconds: what that step would take; 0 before a step has been measured.
    """

    trees: DraftTrees
    gain: float
    plain_seconds: float


class DraftSelector:
    """Learns how often drafts are right and how long steps take, and chooses by it.

    Calls take microseconds, so that they keep the interpreter lock. Not thread safe.
    """

    def __init__(self, priors: npt.NDArray[np.float32], num_slots: int) -> None:
        """
        Args:
            priors: float32 [num_classes], the share of drafts of each class that is believed to be
                accepted before any has been seen.

        Raises:
            KernelLibraryError: the library of CPU kernels is not there.
        """
        self._lib = library_keeping_gil()
        priors = np.ascontiguousarray(priors, dtype=np.float32)
        create = self._lib.taco_draft_selector_create
        self._selector = c_void_p(create(priors.ctypes.data, priors.size, num_slots))
        weakref.finalize(self, self._lib.taco_draft_selector_destroy, self._selector).atexit = False

    def start(self, slots: IntArray) -> None:
        """Other sequences stand in these slots now."""
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
        """The part of well-formed trees that is worth it.

        Args:
            slots: int32, the trees' rows; one without nodes counts, since it gives a token too.
            num_other_tokens: what the step computes beside drafts.
            has_one_path: rows that cannot have branches; None: all may.
            max_branches: of all rows; what comes beyond is a first path alone.
            draft_seconds: what making the drafts took.

        Raises:
            ValueError: columns of another type.
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
        """What the rows of the last choice got, `num_tokens` each; there may be others' too."""
        _check(slots, num_tokens, token_ids)
        self._lib.taco_draft_selector_learn(
            self._selector,
            slots.ctypes.data,
            num_tokens.ctypes.data,
            token_ids.ctypes.data,
            slots.size,
        )

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        self._lib.taco_draft_selector_observe_step(self._selector, num_tokens, seconds)

    @property
    def is_ready(self) -> bool:
        """Some step has been measured."""
        return bool(self._lib.taco_draft_selector_is_ready(self._selector))

    def step_seconds(self, first: int, count: int) -> npt.NDArray[np.float64]:
        """What steps of `first`, `first` + 1, … tokens are expected to take.

        Raises:
            ValueError: no step has been measured.
        """
        if not self.is_ready:
            raise ValueError("no step has been measured")
        seconds = np.empty(count)
        self._lib.taco_draft_selector_estimate(self._selector, first, count, seconds.ctypes.data)
        return seconds

    def chances(self, trees: DraftTrees, slots: IntArray) -> npt.NDArray[np.float64]:
        """[sum(num_nodes)], of each node and all above it to be accepted."""
        chances = np.empty(trees.token_ids.size)
        self._lib.taco_draft_selector_chances(
            self._selector, byref(view(trees, slots)), chances.ctypes.data
        )
        return chances


def _check(*columns: npt.NDArray[np.generic]) -> None:
    if not are_columns(*columns):
        raise ValueError("drafts, slots and tokens must be int32 columns without gaps")


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
