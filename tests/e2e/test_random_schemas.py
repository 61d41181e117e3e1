"""Random bounded schemas on a real engine: every text is valid, and none ends by its length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
from tokenizers import Tokenizer

from support.checkpoints import make_checkpoint
from support.engine_driver import make_request
from support.local_engine import generate, serve
from support.models import kernels_for
from support.random_schemas import RandomSchemas
from taco_gateway.text.grammar.canonical import canonical_grammar
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.grammars import Grammar
from taco_proto.requests import FinishReason
from taco_worker.worker import Worker

NUM_SCHEMAS = 500
MAX_TOKENS = 1900


def options(number: int) -> dict[str, Any]:
    """Every tenth text has free whitespace, of up to 20 characters between two tokens."""
    return {"disable_any_whitespace": number % 10 > 0}


async def test_every_text_is_valid_and_ends(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", max_position_embeddings=2048)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    schemas = RandomSchemas(1)
    chosen = [schemas.schema(depth=2) for _ in range(NUM_SCHEMAS)]
    requests = [
        make_request(
            number,
            [5, 9, 17 + number % 200],
            max_tokens=MAX_TOKENS,
            temperature=(0.0, 1.0, 1.5)[number % 3],
            seed=number,
            grammar=Grammar.of(canonical_grammar("json", schema, options(number))),
            ignore_eos=number % 5 == 0,
        )
        for number, schema in enumerate(chosen)
    ]
    config = WorkerConfig(
        model=ModelConfig(model=str(path), dtype="float32"), num_blocks=4096, max_num_seqs=128
    )
    worker = Worker(config, lambda count: kernels_for("kernels", 2))
    async with serve(worker, max_num_seqs=128) as service:
        got = await generate(service, requests)
    assert not got.errors
    for number, schema in enumerate(chosen):
        text = tokenizer.decode(got.tokens[number, 0])
        assert got.reasons[number, 0] is FinishReason.STOP, (schema, text)
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
