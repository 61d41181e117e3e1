"""Heads of the recipe: losses over packed rows, and training and serving compute the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from recipe.batches import Batch, pack
from recipe.chat import TokenizedDocument
from recipe.heads import eagle_loss, medusa_loss, prepare, write
from recipe.heads_model import (
    NUM_MEDUSA_HEADS,
    EagleHead,
    MedusaHeads,
    eagle_config,
    medusa_config,
)
from recipe.model import CausalLM, ModelShape
from support.heads import append, join, observe, paths_of
from support.models import load_step_model
from support.plans import ints
from taco_demo.locate import find_model
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.heads.head_factory import make_heads

TINY = ModelShape(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=64,
    head_dim=8,
)
DOCUMENTS = [
    TokenizedDocument([3, 9, 27, 17, 51, 25], [False, False, True, True, True, True]),
    TokenizedDocument([5, 25, 61, 49], [False, True, True, True]),
    TokenizedDocument([7, 8, 9, 10, 11, 12, 13, 14], [False] * 3 + [True] * 5),
]
LENGTH = 20


@pytest.fixture
def target() -> CausalLM:
    torch.manual_seed(0)
    model = CausalLM(TINY)
    for parameter in model.parameters():
        parameter.data.mul_(4)  # distributions that are not flat
    return model.requires_grad_(False)


def scramble(heads: nn.Module) -> None:
    for parameter in heads.parameters():
        nn.init.normal_(parameter, std=0.2)


def alone(document: TokenizedDocument) -> Batch:
    return pack([[document]], len(document.token_ids))


def packed() -> Batch:
    return pack([DOCUMENTS[:2], DOCUMENTS[2:]], LENGTH)


def test_medusa_learns_what_the_target_says_later(target: CausalLM) -> None:
    heads = MedusaHeads(TINY)
    scramble(heads)
    losses: list[list[Tensor]] = [[] for _ in heads]
    for document in DOCUMENTS:
        hidden = prepare(target, alone(document)).hidden[0]
        for number, head in enumerate(heads, start=1):
            for place in range(len(document.token_ids) - number - 1):
                if document.is_target[place + number + 1]:
                    expected = target.logits(hidden[place + number]).softmax(-1)
                    guess = target.logits(head(hidden[place])).log_softmax(-1)
                    losses[number - 1].append(-(expected * guess).sum())
    expected_loss = torch.stack([torch.stack(of_head).mean() for of_head in losses]).mean()
    loss = medusa_loss(heads, target, prepare(target, packed()))
    torch.testing.assert_close(loss, expected_loss)
    loss.backward()
    assert all(parameter.grad is not None for parameter in heads.parameters())


def test_eagle_learns_of_each_document_alone(target: CausalLM) -> None:
    head = EagleHead(replace(TINY, num_hidden_layers=1))
    scramble(head)
    total, count = torch.zeros(()), 0
    for document in DOCUMENTS:
        targets = sum(document.is_target[2:])  # the first draft is the token after the next
        total = total + targets * eagle_loss(head, target, prepare(target, alone(document)))
        count += targets
    loss = eagle_loss(head, target, prepare(target, packed()))
    torch.testing.assert_close(loss, total / count)


@pytest.fixture(scope="module")
def demo() -> StepModel:
    model = load_step_model(Path(str(find_model("demo"))), "torch")
    model.allocate_kv(4, 16, 64)
    model.max_tree_paths = 8
    return model


def first_drafts(path: Path, demo: StepModel, tokens: list[int], hidden: Tensor) -> list[int]:
    """Children of the root, the likeliest first."""
    drafter = make_heads(str(path), demo, max_num_seqs=1, max_model_len=64)
    join(drafter, {0: tokens[:-1]})
    observe(drafter, {0: (0, tokens[1:], hidden)})
    append(drafter, {0: tokens[-1:]})
    (row,) = paths_of(drafter.draft(ints([0]), ints([16])))
    return [path[0] for path in row if len(path) == 1]


def sequence() -> tuple[list[int], Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randint(4096, (30,), generator=generator).tolist(),
        torch.randn(29, 384, generator=generator),
    )


@torch.no_grad()
def test_medusa_heads_are_served_as_they_were_trained(tmp_path: Path, demo: StepModel) -> None:
    heads = MedusaHeads()
    scramble(heads)
    write(tmp_path, medusa_config(), heads, "medusa_lm_head.safetensors")
    heads.load_state_dict(load_file(tmp_path / "medusa_lm_head.safetensors"))
    tokens, hidden = sequence()
    drafts = first_drafts(tmp_path, demo, tokens, hidden)
    logits = demo.compute_logits(heads[0](hidden[-1:]))[0]
    assert drafts == logits.topk(len(drafts)).indices.tolist()
    assert len(heads) == NUM_MEDUSA_HEADS


@torch.no_grad()
def test_eagle_heads_are_served_as_they_were_trained(tmp_path: Path, demo: StepModel) -> None:
    head = EagleHead()
    write(tmp_path, eagle_config(), head, "model.safetensors")
    head.load_state_dict(load_file(tmp_path / "model.safetensors"))
    tokens, hidden = sequence()
    drafts = first_drafts(tmp_path, demo, tokens, hidden)
    embedded = demo.embed(torch.tensor(tokens[1:]))
    outputs = head(embedded[None], hidden[None], torch.arange(29)[None], None)
    logits = demo.compute_logits(outputs[0, -1:])[0]
    assert drafts == logits.topk(len(drafts)).indices.tolist()
