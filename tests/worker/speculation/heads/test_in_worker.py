"""The hidden states that heads receive in a worker; tokens with heads equal plain decoding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.drafters import KnowingDrafter
from support.eagle_reference import CONFIGS, NUM_TARGET_LAYERS, eagle_shapes, vocabulary_maps
from support.engine_driver import make_request
from support.every_draft import verify_every_draft
from support.heads import random_tensors, write_heads
from support.local_engine import Generated, generate, serve
from support.models import kernels_for
from taco_proto.config import ModelConfig, SpeculationConfig, WorkerConfig
from taco_worker.speculation import speculator_factory
from taco_worker.speculation.drafter import ComputedTokens
from taco_worker.worker import Worker

PROMPTS = [[5 + i, 9, 17 + 3 * i, *range(30, 30 + 9 * i)] for i in range(4)]
CHUNK = 16  # tokens of a step: prompts take several steps


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        tmp_path_factory.mktemp("target"),
        num_hidden_layers=NUM_TARGET_LAYERS,
        initializer_range=0.1,
    )


@pytest.fixture(autouse=True)
def _every_draft_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    verify_every_draft(monkeypatch)


async def answers(path: Path, serves: str, heads: str | None = None, *, drafts: bool) -> Generated:
    config = WorkerConfig(
        model=ModelConfig(model=str(path), dtype="float32"),
        num_blocks=64,
        max_num_seqs=8,
        speculation=SpeculationConfig(heads=heads) if drafts else None,
    )
    requests = [
        make_request(i, prompt, max_tokens=24, ignore_eos=True, temperature=0.0)
        for i, prompt in enumerate(PROMPTS)
    ]
    worker = Worker(config, lambda count: kernels_for(serves, 2))
    async with serve(worker, max_num_batched_tokens=CHUNK) as service:
        return await generate(service, requests)


class Listener(KnowingDrafter):
    """A drafter that records the observed hidden states of each sequence."""

    def __init__(self, truth: Mapping[tuple[int, ...], list[list[int]]]) -> None:
        super().__init__(truth, branches=True)
        self.heard: list[tuple[list[int], list[Tensor]]] = []  # next tokens, hidden states
        self._of_slot: dict[int, tuple[list[int], list[Tensor]]] = {}
        self.most_at_once = 0  # maximum tokens of a sequence in one step, without prompts

    def observe(self, computed: ComputedTokens) -> None:
        end = 0
        for slot, count, position in zip(
            computed.slots.tolist(),
            computed.num_tokens.tolist(),
            computed.positions.tolist(),
            strict=True,
        ):
            start, end = end, end + count
            if position == 0:
                self._of_slot[slot] = ([], [])
                self.heard.append(self._of_slot[slot])
            else:
                self.most_at_once = max(self.most_at_once, count)
            tokens, hidden = self._of_slot[slot]
            assert len(tokens) == position
            tokens += computed.next_token_ids[start:end].tolist()
            hidden.append(computed.hidden[start:end].clone())


@pytest.mark.parametrize("serves", ["torch", "kernels"])
@pytest.mark.parametrize("layers", [(), (3, 0)])
async def test_hidden_states_are_those_of_the_tokens_that_are_kept(
    target_path: Path, layers: tuple[int, ...], serves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = (await answers(target_path, serves, drafts=False)).tokens
    listener = Listener({tuple(PROMPTS[i]): [tokens] for (i, _), tokens in expected.items()})
    listener.hidden_layers = layers

    def make_listener(config: Any, model: Any, batch: Any) -> Listener:
        model.keep_hidden(layers)
        return listener

    monkeypatch.setattr(speculator_factory, "_make_drafter", make_listener)
    assert (await answers(target_path, serves, drafts=True)).tokens == expected
    assert listener.most_at_once > 1

    oracle = transformers.AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32)
    wholes = {tuple(PROMPTS[i] + tokens) for (i, _), tokens in expected.items()}
    for behind, hidden in listener.heard:
        (whole,) = (tokens for tokens in wholes if tokens[1 : len(behind) + 1] == tuple(behind))
        with torch.inference_mode():
            token_ids = torch.tensor([whole[: len(behind)]])
            outputs = oracle(token_ids, output_hidden_states=True).hidden_states
        wanted = [outputs[layer + 1] for layer in layers] or [outputs[-1]]
        torch.testing.assert_close(
            torch.cat(hidden), torch.cat(wanted, dim=-1)[0], rtol=1e-3, atol=1e-3
        )
    assert len(listener.heard) == len(PROMPTS)


@pytest.mark.parametrize("serves", ["torch", "kernels"])
@pytest.mark.parametrize("kind", CONFIGS)
async def test_heads_change_no_token(
    tmp_path: Path, target_path: Path, kind: str, serves: str
) -> None:
    tensors = random_tensors(eagle_shapes(kind))
    if kind == "eagle3":
        tensors |= vocabulary_maps()
    heads = write_heads(tmp_path, CONFIGS[kind], tensors, "model.safetensors")
    expected = await answers(target_path, serves, drafts=False)
    drafted = await answers(target_path, serves, str(heads), drafts=True)
    assert drafted.tokens == expected.tokens
