"""The heads that ship with the demo model: their files, and what they save."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from recipe.chat import ChatEncoder
from recipe.heads_model import eagle_config, medusa_config
from support.engine_driver import make_request
from support.every_draft import verify_every_draft
from support.local_engine import Generated, generate, serve
from support.models import kernels_for
from taco_demo.locate import BUNDLED_HEADS, find_model
from taco_proto.config import ModelConfig, SpeculationConfig, WorkerConfig
from taco_worker.worker import Worker

QUESTIONS = (
    "What does json.dumps do?",
    "What is os.path.join?",
    "How do I cook rice?",
    "Show me an example of str.upper",
    "What does the function textwrap.shorten do?",
    "hello",
)


def bundled(name: str) -> Path:
    directory = find_model(name)
    assert directory is not None
    return directory


def test_files() -> None:
    sizes = {}
    for name, config in (("demo-medusa", medusa_config()), ("demo-eagle", eagle_config())):
        assert json.loads((bundled(name) / "config.json").read_text()) == config
        (file,) = bundled(name).glob("*.safetensors")
        sizes[name] = file.stat().st_size
        assert {tensor.dtype for tensor in load_file(file).values()} == {torch.bfloat16}
    assert tuple(sizes) == BUNDLED_HEADS
    assert sum(sizes.values()) < 3_000_000


async def answers(heads: str | None) -> tuple[Generated, int]:
    """With the number of drafts that were accepted."""
    encoder = ChatEncoder(Tokenizer.from_file(str(bundled("demo") / "tokenizer.json")))
    requests = [
        make_request(i, encoder.prompt(question), max_tokens=64, temperature=0.0)
        for i, question in enumerate(QUESTIONS)
    ]
    config = WorkerConfig(
        model=ModelConfig(model=str(bundled("demo"))),
        num_blocks=128,
        max_num_seqs=8,
        speculation=None if heads is None else SpeculationConfig(heads=str(bundled(heads))),
    )
    async with serve(Worker(config, lambda count: kernels_for("kernels", 2))) as service:
        received = await generate(service, requests)
        return received, service.engine.counters.speculation.accepted_tokens


@pytest.mark.parametrize(("name", "tokens_a_step"), [("demo-medusa", 1.3), ("demo-eagle", 1.5)])
async def test_heads_save_steps_and_change_nothing(
    name: str, tokens_a_step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_every_draft(monkeypatch)
    expected, _ = await answers(None)
    got, num_accepted = await answers(name)
    assert got.tokens == expected.tokens
    num_tokens = sum(map(len, got.tokens.values()))
    assert num_tokens / (num_tokens - num_accepted) > tokens_a_step
