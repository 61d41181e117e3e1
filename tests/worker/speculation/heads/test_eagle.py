"""EAGLE and EAGLE 3 against a separate computation."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.eagle_reference import (
    CONFIGS,
    DRAFT_VOCAB,
    FEATURE_LAYERS,
    HIDDEN,
    NUM_TARGET_LAYERS,
    VOCAB,
    EagleReference,
    eagle_shapes,
    vocabulary_maps,
)
from support.heads import append, join, observe, paths_of, random_tensors, write_heads
from support.models import load_step_model
from support.plans import ints
from taco_proto.errors import ConfigurationError
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.drafter import Drafter
from taco_worker.speculation.heads.draft_tree import NUM_CLASSES
from taco_worker.speculation.heads.eagle import MAX_DEPTH
from taco_worker.speculation.heads.head_factory import make_heads

MAX_NUM_SEQS = 4
MAX_MODEL_LEN = 512


@pytest.fixture(scope="module", params=["torch", "kernels"])
def serves(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    # Large weights, so that probabilities differ.
    options = {"num_hidden_layers": NUM_TARGET_LAYERS, "initializer_range": 0.3}
    return make_checkpoint(path, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def target(target_path: Path, serves: str) -> StepModel:
    return load_target(target_path, serves)


def load_target(path: Path, serves: str, *, max_tree_paths: int = 32) -> StepModel:
    model = load_step_model(path, serves)
    model.allocate_kv(4, 16, 64)
    model.max_tree_paths = max_tree_paths
    return model


@cache
def head_tensors(kind: str) -> dict[str, Tensor]:
    tensors = random_tensors(eagle_shapes(kind))
    if kind == "eagle3":
        tensors["lm_head.weight"] *= 4
        tensors |= vocabulary_maps()
    return tensors


@pytest.fixture(scope="module")
def heads_path(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(kind)
    file = "pytorch_model.bin" if kind == "eagle" else "model.safetensors"
    return write_heads(path, CONFIGS[kind], head_tensors(kind), file)


@pytest.fixture
def reference(kind: str, target_path: Path) -> EagleReference:
    weights = load_file(target_path / "model.safetensors")
    embeddings, lm_head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    return EagleReference(kind, head_tensors(kind), embeddings, lm_head)


def load(path: Path, target: StepModel, **options: Any) -> Drafter:
    return make_heads(
        str(path), target, max_num_seqs=MAX_NUM_SEQS, max_model_len=MAX_MODEL_LEN, **options
    )


def random_sequence(kind: str, length: int, seed: int) -> tuple[list[int], Tensor]:
    """Tokens, and random hidden states of all but the last."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (length,), generator=generator).tolist()
    width = HIDDEN * FEATURE_LAYERS[kind]
    return tokens, torch.randn(length - 1, width, generator=generator)


def feed(drafter: Drafter, sequences: dict[int, tuple[list[int], Tensor]]) -> None:
    """Sequences with all tokens but the last computed in one step."""
    join(drafter, {slot: tokens[:-1] for slot, (tokens, _) in sequences.items()})
    observe(
        drafter, {slot: (0, tokens[1:], hidden) for slot, (tokens, hidden) in sequences.items()}
    )
    append(drafter, {slot: tokens[-1:] for slot, (tokens, _) in sequences.items()})


def test_hidden_layers_of_the_target(kind: str, heads_path: Path, target: StepModel) -> None:
    drafter = load(heads_path, target)
    assert drafter.name == kind
    # The inputs of layers 2, 7 // 2 and 7 - 3 are the outputs of the layers before them.
    assert drafter.hidden_layers == {"eagle": (), "eagle3": (1, 2, 3)}[kind]


def test_a_chain_is_the_greedy_one(
    kind: str, heads_path: Path, target_path: Path, serves: str, reference: EagleReference
) -> None:
    target = load_target(target_path, serves, max_tree_paths=0)
    drafter = load(heads_path, target)
    sequences = {3: random_sequence(kind, 70, 1), 0: random_sequence(kind, 5, 2)}
    feed(drafter, sequences)
    wanted = [3, 16]
    trees = drafter.draft(ints([3, 0]), ints(wanted))
    assert trees.num_nodes.tolist() == [3, MAX_DEPTH]
    for row, (tokens, hidden) in zip(paths_of(trees), sequences.values(), strict=True):
        chain: list[int] = []
        for _ in row:
            chances = reference.log_chances(tokens[1:], hidden, chain)
            chain.append(int(chances.argmax()))
        assert list(row)[-1] == tuple(chain)


def test_trees_hold_likely_children_of_likely_nodes(
    kind: str, heads_path: Path, target: StepModel, reference: EagleReference
) -> None:
    drafter = load(heads_path, target)
    sequences = {1: random_sequence(kind, 9, 3), 2: random_sequence(kind, 66, 4)}
    feed(drafter, sequences)
    rows = paths_of(drafter.draft(ints([1, 2]), ints([16, 7])))
    for row, count, (tokens, hidden) in zip(rows, [16, 7], sequences.values(), strict=True):
        assert len(row) == count
        for parent in {path[:-1] for path in row}:
            chances = reference.log_chances(tokens[1:], hidden, parent)
            children = {path[-1]: row[path] for path in row if path[:-1] == parent}
            assert list(children) == chances.argsort(descending=True)[: len(children)].tolist()
            for token, node_class in children.items():
                chance = math.exp(float(chances[token]))
                assert node_class / NUM_CLASSES - 1e-4 < chance
                assert chance < (node_class + 1) / NUM_CLASSES + 1e-4
    assert max(len(path) for row in rows for path in row) > 1


# A history: the steps of each sequence.
Step = dict[int, tuple[int, bool]]  # slot to (tokens computed and kept, whether it gets drafts)
steps = st.lists(
    st.dictionaries(
        st.integers(0, MAX_NUM_SEQS - 1),
        st.tuples(st.integers(1, 80), st.booleans()),
        min_size=1,
    ),
    min_size=1,
    max_size=6,
)


@given(history=steps, leaves=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 3))))
@settings(max_examples=15)
def test_rejected_drafts_do_not_matter(
    kind: str,
    heads_path: Path,
    target: StepModel,
    history: list[Step],
    leaves: set[tuple[int, int]],
) -> None:
    drafter = load(heads_path, target)
    sequences: dict[int, tuple[list[int], Tensor]] = {}
    done: dict[int, int] = {}
    for number, step in enumerate(history):
        for slot in [slot for slot in step if (number, slot) in leaves and slot in done]:
            drafter.leave(ints([slot]))
            del done[slot]
        new = [slot for slot in step if slot not in done]
        for slot in new:
            sequences[slot] = random_sequence(kind, 500, number * MAX_NUM_SEQS + slot)
            done[slot] = 0
        join(drafter, {slot: sequences[slot][0][:1] for slot in new})
        chunks = {}
        for slot, (count, _) in step.items():
            tokens, hidden = sequences[slot]
            begin, end = done[slot], done[slot] + count
            chunks[slot] = (begin, tokens[begin + 1 : end + 1], hidden[begin:end])
            done[slot] = end
        observe(drafter, chunks)
        append(drafter, {slot: tokens for slot, (_, tokens, _) in chunks.items()})
        drafted = [slot for slot, (_, is_drafted) in step.items() if is_drafted]
        drafter.draft(ints(drafted), ints([9] * len(drafted)))  # all drafts are rejected

    fresh = load(heads_path, target)
    feed(
        fresh,
        {
            slot: (sequences[slot][0][: count + 1], sequences[slot][1][:count])
            for slot, count in done.items()
        },
    )
    slots = ints(list(done))
    counts = ints([12] * len(done))
    assert paths_of(drafter.draft(slots, counts)) == paths_of(fresh.draft(slots, counts))


def test_cached_prefix_tokens_are_skipped(
    kind: str, heads_path: Path, target: StepModel, reference: EagleReference
) -> None:
    drafter = load(heads_path, target, num_draft_tokens=3)
    tokens, hidden = random_sequence(kind, 90, 5)
    join(drafter, {0: tokens[:-1]})
    observe(drafter, {0: (64, tokens[65:], hidden[64:])})
    append(drafter, {0: tokens[-1:]})
    (row,) = paths_of(drafter.draft(ints([0]), ints([3])))
    chances = reference.log_chances(tokens[65:], hidden[64:], [], first_position=64)
    assert next(iter(row)) == (int(chances.argmax()),)


def test_sequences_without_room_or_hidden_states_get_no_drafts(
    kind: str, heads_path: Path, target: StepModel
) -> None:
    drafter = load(heads_path, target)
    tokens, hidden = random_sequence(kind, 9, 6)
    join(drafter, {0: tokens, 1: tokens[:-1]})
    observe(drafter, {0: (0, tokens[1:6], hidden[:5]), 1: (0, tokens[1:], hidden)})
    append(drafter, {1: tokens[-1:]})
    trees = drafter.draft(ints([0, 1, 2]), ints([4, 4, 4]))
    assert trees.num_nodes.tolist() == [0, 4, 0]
    assert drafter.draft(ints([1]), ints([0])).num_nodes.tolist() == [0]


def without(kind: str, name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in head_tensors(kind).items() if key != name}


def replaced(kind: str, name: str, tensor: Tensor) -> dict[str, Tensor]:
    return {**head_tensors(kind), name: tensor}


@pytest.mark.parametrize(
    ("kind_of", "options", "tensors", "problem"),
    [
        ("eagle", {}, without("eagle", "fc.weight"), "it lacks fc.weight"),
        (
            "eagle",
            {},
            without("eagle", "layers.0.self_attn.v_proj.weight"),
            "missing tensors: layers.0.self_attn.v_proj.weight",
        ),
        (
            "eagle",
            {},
            replaced("eagle", "layers.1.mlp.up_proj.weight", torch.zeros(2)),
            "unexpected tensors: layers.1.mlp.up_proj.weight",
        ),
        ("eagle", {"hidden_size": 32}, head_tensors("eagle"), "their hidden_size is 32"),
        ("eagle", {"vocab_size": 100}, head_tensors("eagle"), "their vocab_size is 100"),
        ("eagle", {"hidden_act": "gelu"}, head_tensors("eagle"), "heads with 'gelu' are not"),
        ("eagle", {"num_attention_heads": 0}, head_tensors("eagle"), r"config\.json is invalid"),
        (
            "eagle",
            {"intermediate_size": 90},
            head_tensors("eagle"),
            r"gate_proj.weight \(is \[96, 64\], should be \[90, 64\]\)",
        ),
        ("eagle3", {}, without("eagle3", "d2t"), "no d2t tensor"),
        (
            "eagle3",
            {},
            replaced("eagle3", "d2t", torch.full((DRAFT_VOCAB,), VOCAB)),
            "d2t names tokens outside the vocabulary of 384",
        ),
        (
            "eagle3",
            {"draft_vocab_size": 99},
            head_tensors("eagle3"),
            r"d2t is \[120\], should be \[99\]",
        ),
        (
            "eagle3",
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}},
            head_tensors("eagle3"),
            "hidden states of layer 6 cannot be kept",
        ),
    ],
)
def test_an_invalid_checkpoint_is_rejected(
    tmp_path: Path,
    target_path: Path,
    kind_of: str,
    options: dict[str, Any],
    tensors: dict[str, Tensor],
    problem: str,
) -> None:
    path = write_heads(tmp_path, {**CONFIGS[kind_of], **options}, tensors, "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match=problem):
        load(path, load_target(target_path, "torch"))


def test_the_config_may_name_the_layers(tmp_path: Path, target_path: Path) -> None:
    config = {
        **CONFIGS["eagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]},
    }
    path = write_heads(tmp_path, config, head_tensors("eagle3"), "model.safetensors")
    assert load(path, load_target(target_path, "torch")).hidden_layers == (0, 2, 5)


def test_a_target_with_narrow_embeddings_is_rejected(tmp_path: Path) -> None:
    narrow = make_checkpoint(
        tmp_path / "target",
        "OPTForCausalLM",
        do_layer_norm_before=False,
        word_embed_proj_dim=40,
        num_hidden_layers=NUM_TARGET_LAYERS,
    )
    path = write_heads(tmp_path / "heads", CONFIGS["eagle"], head_tensors("eagle"), "m.bin")
    (path / "m.bin").rename(path / "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match="as wide as"):
        load(path, load_step_model(narrow, "torch"))
