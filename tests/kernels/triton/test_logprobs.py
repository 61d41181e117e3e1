"""Log probabilities, ranks and most likely tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from support import sampling_cases as cases
from support.triton_interpreter import DEVICE
from taco_kernels.sampling_metadata import Array
from taco_kernels.triton.logprobs import gather_logprobs
from taco_kernels.triton.row_statistics import GROUP, TILE

GROUP_SIZE, TILE_SIZE = GROUP.value, TILE.value


def gather(logits: Tensor, token_ids: Array, num_top: Array) -> tuple[Array, Array, Array]:
    ids = torch.from_numpy(token_ids).to(DEVICE)
    width = int(num_top.max(initial=0))
    found = gather_logprobs(logits.to(DEVICE), ids, width)
    values, logprobs, ranks = (tensor.cpu().numpy() for tensor in found)
    return values, logprobs, ranks


@pytest.mark.parametrize("size", [5, GROUP_SIZE + 8, 3 * TILE_SIZE + 300])
@pytest.mark.parametrize("most", [0, 1, 7, 20, 128, 300])
def test_log_probabilities_and_ranks(size: int, most: int) -> None:
    most = min(size, most)
    cases.check_logprobs(gather, size, np.array([0, most, most // 2, most], dtype=np.int32))


def test_log_probabilities_do_not_depend_on_other_rows() -> None:
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.standard_normal((4, 3000)).astype(np.float32))
    token_ids, num_top = rng.integers(0, 3000, 4), np.full(4, 9, dtype=np.int32)
    together = gather(logits, token_ids, num_top)
    for row in range(4):
        chosen = slice(row, row + 1)
        alone = gather(logits[chosen], token_ids[chosen], num_top[chosen])
        for whole, part in zip(together, alone, strict=True):
            assert np.array_equal(whole[chosen], part)


def test_equal_logits_are_ranked_by_their_ids() -> None:
    cases.check_logprobs_of_equals(gather, TILE_SIZE + 60)


def test_ties_across_many_groups_have_the_lowest_id_first() -> None:
    logits = torch.zeros(1, 5000)
    logits[0, 4000], logits[0, 100] = 2.0, -1.0
    ids, _, _ = gather(logits, np.array([4000]), np.array([110], dtype=np.int32))
    others = [i for i in range(111) if i != 100]
    assert ids[0].tolist() == [4000, 4000, *others[:109]]


def test_a_nan_makes_a_row_of_nans_and_no_other() -> None:
    cases.check_logprobs_of_nan(gather)


@pytest.mark.parametrize("logit", [-torch.inf, torch.inf])
def test_a_row_without_a_finite_maximum_has_no_log_probabilities(logit: float) -> None:
    logits = torch.zeros(1, 50)
    logits[0, 10 if logit > 0 else slice(None)] = logit
    ids, values, ranks = gather(logits, np.array([10]), np.array([2], dtype=np.int32))
    assert ids[0].tolist() == [10, *((10, 0) if logit > 0 else (0, 1))]
    assert np.isnan(values).all()
    assert ranks.tolist() == [1]


def test_wrong_arguments_are_rejected() -> None:
    logits = torch.zeros(2, 10, device=DEVICE)
    ids = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match="float32 rows"):
        gather_logprobs(logits.half(), ids, 0)
    with pytest.raises(ValueError, match=r"token_ids must be torch.int64 \[2\]"):
        gather_logprobs(logits, ids.int(), 0)
    with pytest.raises(ValueError, match="num_top must be 0 to 10, not 11"):
        gather_logprobs(logits, ids, 11)
