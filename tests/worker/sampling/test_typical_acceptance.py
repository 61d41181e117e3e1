import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from taco_kernels.native.draft_trees import DraftTrees
from taco_kernels.sampling_metadata import SamplingMetadata
from taco_worker.devices.transfers import Transfers
from taco_worker.sampling.typical_acceptance import Candidates, TypicalAcceptance, draft_candidates


def logits_of(probs: list[list[float]]) -> torch.Tensor:
    return torch.tensor(probs).log()


def prefer(
    probs: list[list[float]],
    candidates: list[tuple[int, int]],
    temperature: list[float] | None = None,
    threshold: float = 0.3,
    alpha: float = 0.5,
    filters: Mapping[str, float] | None = None,
) -> list[int]:
    """The target samples token 3 in every row."""
    warmth = np.array(temperature or [1.0] * len(probs), dtype=np.float32)
    given = (filters or {}).items()
    columns = {name: np.full(len(probs), value, np.float32) for name, value in given}
    metadata = replace(SamplingMetadata.greedy(len(probs)), temperature=warmth, **columns)
    rows, tokens = (np.array(column, dtype=np.int64) for column in zip(*candidates, strict=True))
    chosen = torch.full((len(probs),), 3)
    acceptance = TypicalAcceptance(threshold, alpha)
    drafts, transfers = Candidates(rows, tokens), Transfers(torch.device("cpu"))
    return acceptance.prefer(logits_of(probs), metadata, chosen, drafts, transfers).tolist()


def test_a_draft_above_the_threshold_is_accepted() -> None:
    assert prefer([[0.4, 0.2, 0.2, 0.2]], [(0, 0)]) == [0]


def test_a_draft_below_both_limits_is_rejected() -> None:
    assert prefer([[0.02, 0.0, 0.0, 0.98]], [(0, 0)]) == [3]


def test_a_flatter_distribution_lowers_the_limit() -> None:
    flat = [[0.25, 0.25, 0.25, 0.25]]
    entropy = math.log(4)
    just_enough = 0.25 / math.exp(-entropy) - 1e-3
    assert prefer(flat, [(0, 1)], threshold=0.9, alpha=just_enough) == [1]
    assert prefer(flat, [(0, 1)], threshold=0.9, alpha=just_enough + 2e-3) == [3]


def test_the_most_likely_draft_is_accepted() -> None:
    assert prefer([[0.3, 0.4, 0.2, 0.1]], [(0, 0), (0, 1), (0, 2)], threshold=0.1) == [1]


def test_temperature_counts_and_greedy_rows_stay_exact() -> None:
    row = [0.1, 0.2, 0.3, 0.4]
    hot = prefer([row, row], [(0, 0), (1, 0)], temperature=[50.0, 0.0], threshold=0.2)
    assert hot == [0, 3]


@pytest.mark.parametrize("filters", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.6}])
def test_rows_with_filters_stay_exact(filters: dict[str, float]) -> None:
    """The draft is above the threshold, and outside of each filter."""
    probs, draft = [[0.5, 0.3, 0.2, 0.0]], [(0, 2)]
    assert prefer(probs, draft, threshold=0.1) == [2]
    assert prefer(probs, draft, threshold=0.1, filters=filters) == [3]


def test_a_banned_token_is_never_accepted() -> None:
    assert prefer([[0.0, 0.5, 0.25, 0.25]], [(0, 0)], threshold=0.0) == [3]


@pytest.mark.parametrize("is_sampled", [[True, True], [False, True]])
def test_drafts_follow_their_parents_logits(is_sampled: list[bool]) -> None:
    num_nodes = [2, 3] if is_sampled[0] else [0, 3]
    parents = [-1, 0, -1, 0, 0] if is_sampled[0] else [-1, 0, 0]
    tokens = list(range(10, 10 + len(parents)))
    trees = DraftTrees(
        np.array(num_nodes, dtype=np.int32),
        np.array(tokens, dtype=np.int32),
        np.array(parents, dtype=np.int32),
        np.zeros(len(parents), dtype=np.int32),
    )
    found = draft_candidates(trees, np.array(is_sampled))
    # Rows of logits: root and nodes of the first row, then of the second.
    assert found.rows.tolist() == ([0, 1, 3, 4, 4] if is_sampled[0] else [0, 1, 1])
    assert found.token_ids.tolist() == tokens
