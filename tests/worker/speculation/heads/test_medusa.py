"""The Medusa drafter against its definition, computed head by head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.heads import append, join, observe, paths_of, random_tensors, write_heads
from support.models import load_step_model
from support.plans import ints
from taco_proto.errors import ConfigurationError
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.drafter import Drafter
from taco_worker.speculation.heads.head_factory import make_heads

NUM_HEADS = 3
NUM_LAYERS = 2
NUM_RANKS = 8
HIDDEN = 64
VOCAB = 384
CONFIG = {
    "base_model_name_or_path": "base",
    "medusa_num_heads": NUM_HEADS,
    "medusa_num_layers": NUM_LAYERS,
}


def medusa_shapes(*, own_lm_heads: bool = True) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(NUM_HEADS):
        for layer in range(NUM_LAYERS):
            shapes[f"{head}.{layer}.linear.weight"] = (HIDDEN, HIDDEN)
            shapes[f"{head}.{layer}.linear.bias"] = (HIDDEN,)
        if own_lm_heads:
            shapes[f"{head}.{NUM_LAYERS}.weight"] = (VOCAB, HIDDEN)
    return shapes


TENSORS = random_tensors(medusa_shapes())


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module", params=["torch", "kernels"])
def target(request: pytest.FixtureRequest, target_path: Path) -> StepModel:
    model = load_step_model(target_path, request.param)
    model.allocate_kv(4, 16, 64)
    model.max_tree_paths = 32
    return model


def load(path: Path, target: StepModel, **options: Any) -> Drafter:
    return make_heads(str(path), target, max_num_seqs=4, max_model_len=64, **options)


def hidden_states(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def expected_candidates(
    hidden: Tensor, tensors: dict[str, Tensor], lm_head: Tensor | None = None
) -> list[list[int]]:
    """The most likely tokens of each head, best first."""
    candidates = []
    for head in range(NUM_HEADS):
        x = hidden
        for layer in range(NUM_LAYERS):
            name = f"{head}.{layer}.linear"
            x = x + torch.nn.functional.silu(
                tensors[f"{name}.weight"] @ x + tensors[f"{name}.bias"]
            )
        matrix = tensors[f"{head}.{NUM_LAYERS}.weight"] if lm_head is None else lm_head
        candidates.append((matrix @ x).argsort(descending=True)[:NUM_RANKS].tolist())
    return candidates


@pytest.mark.parametrize(
    ("file", "prefix"),
    [
        ("medusa_lm_head.pt", ""),
        ("medusa_lm_head.safetensors", ""),
        ("model.safetensors", "medusa_head."),
    ],
)
def test_trees_hold_the_heads_likeliest_tokens(
    tmp_path: Path, target: StepModel, file: str, prefix: str
) -> None:
    stored = {f"{prefix}{name}": tensor for name, tensor in TENSORS.items()}
    if prefix:
        stored["model.norm.weight"] = torch.ones(HIDDEN)  # a tensor of the base model
    drafter = load(write_heads(tmp_path, CONFIG, stored, file), target)
    assert (drafter.name, drafter.hidden_layers) == ("medusa", ())

    join(drafter, {2: [5, 6, 7], 0: [9]})
    hidden = hidden_states(4)
    observe(drafter, {2: (0, [6, 7, 8], hidden[:3]), 0: (0, [4], hidden[3:])})
    append(drafter, {2: [8], 0: [4]})
    rows = paths_of(drafter.draft(ints([0, 2]), ints([drafter.max_draft_tokens, 7])))
    for row, count, last in zip(rows, [drafter.max_draft_tokens, 7], [3, 2], strict=True):
        assert len(row) == count
        candidates = expected_candidates(hidden[last], TENSORS)
        assert next(iter(row)) == (candidates[0][0],)
        for path, node_class in row.items():
            depth = len(path) - 1
            assert divmod(node_class, NUM_RANKS) == (depth, candidates[depth].index(path[-1]))
    greedy = tuple(ranks[0] for ranks in expected_candidates(hidden[3], TENSORS))
    assert greedy in rows[0]
    assert max(node_class for row in rows for node_class in row.values()) < drafter.priors.size


def test_heads_without_lm_heads_share_the_targets(
    tmp_path: Path, target_path: Path, target: StepModel
) -> None:
    from safetensors.torch import load_file

    tensors = random_tensors(medusa_shapes(own_lm_heads=False))
    config = {**CONFIG, "original_lm_head": True}
    drafter = load(write_heads(tmp_path, config, tensors, "medusa_lm_head.safetensors"), target)
    join(drafter, {1: [5]})
    hidden = hidden_states(1)
    observe(drafter, {1: (0, [3], hidden)})
    append(drafter, {1: [3]})
    (row,) = paths_of(drafter.draft(ints([1]), ints([16])))
    lm_head = load_file(target_path / "model.safetensors")["lm_head.weight"]
    expected = expected_candidates(hidden[0], tensors, lm_head)
    assert tuple(ranks[0] for ranks in expected) in row


def test_sequences_without_room_or_hidden_states_get_no_drafts(
    tmp_path: Path, target: StepModel
) -> None:
    path = write_heads(tmp_path, CONFIG, TENSORS, "medusa_lm_head.pt")
    drafter = load(path, target, num_draft_tokens=4)
    assert drafter.max_draft_tokens == 4
    join(drafter, {0: [1, 2, 3], 1: [1], 2: [1], 3: [1]})
    hidden = hidden_states(4)
    observe(
        drafter,
        {slot: (0, [2], hidden[slot : slot + 1]) for slot in range(3)},  # 0: part of its prompt
    )
    append(drafter, {1: [2], 2: [2], 3: [2]})
    trees = drafter.draft(ints([0, 1, 2, 3]), ints([9, 9, 0, 9]))
    assert trees.num_nodes.tolist() == [0, 4, 0, 0]
    append(drafter, {1: [2]})  # the step's hidden states were lost
    assert drafter.draft(ints([1]), ints([9])).num_nodes.tolist() == [0]


def test_a_target_without_trees_gets_chains(tmp_path: Path, target_path: Path) -> None:
    target = load_step_model(target_path, "torch")
    target.max_tree_paths = 0
    drafter = load(write_heads(tmp_path, CONFIG, TENSORS, "medusa_lm_head.pt"), target)
    assert drafter.max_draft_tokens == NUM_HEADS
    join(drafter, {0: [1]})
    hidden = hidden_states(1)
    observe(drafter, {0: (0, [2], hidden)})
    append(drafter, {0: [2]})
    trees = drafter.draft(ints([0]), ints([9]))
    assert trees.parents.tolist() == [-1, 0, 1]
    expected = expected_candidates(hidden[0], TENSORS)
    assert trees.token_ids.tolist() == [ranks[0] for ranks in expected]


def without(name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in TENSORS.items() if key != name}


@pytest.mark.parametrize(
    ("config", "tensors", "problem"),
    [
        (CONFIG, without("1.0.linear.bias"), "missing tensors: 1.0.linear.bias"),
        (
            CONFIG,
            {**TENSORS, "0.2.weight": torch.zeros(400, HIDDEN)},
            r"0.2.weight \(is \[400, 64\], should be \[384, 64\]\)",
        ),
        (
            CONFIG,
            {**TENSORS, "0.0.linear.weight": torch.zeros(32, 32)},
            r"0.0.linear.weight \(is \[32, 32\]",
        ),
        (CONFIG, {**TENSORS, "0.9.weight": torch.zeros(1)}, "unexpected tensors: 0.9.weight"),
        ({**CONFIG, "medusa_num_layers": "one"}, TENSORS, "medusa_num_layers must be a number"),
        ({"architectures": ["BertModel"]}, TENSORS, "holds no known draft heads"),
    ],
)
def test_an_invalid_checkpoint_is_rejected(
    tmp_path: Path,
    target: StepModel,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    problem: str,
) -> None:
    path = write_heads(tmp_path, config, tensors, "medusa_lm_head.pt")
    with pytest.raises(ConfigurationError, match=problem):
        load(path, target)


def test_files_that_cannot_be_read_are_named(tmp_path: Path, target: StepModel) -> None:
    with pytest.raises(ConfigurationError, match="is not a model directory"):
        load(tmp_path / "none", target)
    path = write_heads(tmp_path / "bare", CONFIG, {}, "other.pt")
    with pytest.raises(ConfigurationError, match="no weights in"):
        load(path, target)
    (path / "config.json").write_text("[")
    with pytest.raises(ConfigurationError, match=r"cannot read .*config\.json"):
        load(path, target)
