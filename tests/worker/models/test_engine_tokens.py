"""Shared prefixes, preemption and the host tier keep the greedy tokens of every architecture.

The requests go through a scheduler and a worker in this process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.architectures.variant import Oracle, Variant, token_sequences
from support.architectures.variants import VARIANTS
from support.engine_driver import make_request
from support.local_engine import Generated, generate, serve
from support.models import kernels_for
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.models.config import load_hf_config
from taco_worker.models.registry import supported_architectures
from taco_worker.worker import Worker

_NAMES = supported_architectures()
SUPPORTED = [v for v in VARIANTS.values() if v.architecture in _NAMES]
ONE_OF_EACH = list({v.architecture: v for v in reversed(SUPPORTED)}.values())
# Two blocks that all prompts share; then one, one and two separate blocks. When each has one
# block more, the device is full, and the last is preempted: the others evict both of its blocks.
PREFIX, *SUFFIXES = token_sequences((32, 13, 11, 30), seed=3)
PROMPTS = [[*PREFIX, *suffix] for suffix in SUFFIXES]
NUM_BLOCKS, BLOCK_SIZE = 8, 16
NUM_TOKENS = 24


def _worker(path: Path, serves: str, *, has_host_tier: bool) -> Worker:
    config = WorkerConfig(
        model=ModelConfig(model=str(path), dtype="float32"),
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_num_seqs=len(PROMPTS),
        host_kv_bytes=1 << 20 if has_host_tier else 0,
        num_threads=1,
    )
    return Worker(config, lambda count: kernels_for(serves, 1))


async def _answers(worker: Worker, *, swaps: bool) -> Generated:
    """`swaps`: the preempted sequence's blocks come back from the host; else it computes them."""
    requests = [
        make_request(handle, prompt, max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.0)
        for handle, prompt in enumerate(PROMPTS)
    ]
    worker.reset()
    async with serve(worker, swaps_preempted=swaps, offload_min_accesses=100) as service:
        got = await generate(service, requests)
        (replica,) = service.engine.replicas
        # Of a model with states too: the first prompt saves them at the end of its blocks.
        assert list(got.cached.values()) == [0, len(PREFIX), len(PREFIX)]
        assert service.engine.counters.num_preemptions == 1
        assert replica.worker.blocks.hits.host == (2 if swaps else 0)
    return got


def _assert_greedy(got: Generated, oracle: Oracle) -> None:
    """Each token is the most likely one after those before it."""
    sequences = [[*prompt, *got.tokens[handle, 0]] for handle, prompt in enumerate(PROMPTS)]
    for ids, prompt, logits in zip(sequences, PROMPTS, oracle(sequences), strict=True):
        assert len(ids) == len(prompt) + NUM_TOKENS
        assert ids[len(prompt) :] == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


async def _check(variant: Variant, path: Path, serves: str) -> None:
    variant.make(path)
    has_host_tier = not load_hf_config(path).plan.states
    worker = _worker(path, serves, has_host_tier=has_host_tier)
    got = [await _answers(worker, swaps=has_host_tier)]
    if has_host_tier and variant in ONE_OF_EACH and serves == "kernels":
        got.append(await _answers(worker, swaps=False))
    worker.close()
    oracle = variant.reference(path, max_model_len=worker.info.max_model_len)
    for one in got:
        _assert_greedy(one, oracle)


@pytest.mark.parametrize("variant", SUPPORTED, ids=lambda variant: variant.name)
async def test_greedy_tokens_of_the_kernels(variant: Variant, tmp_path: Path) -> None:
    await _check(variant, tmp_path / "model", "kernels")


@pytest.mark.parametrize("variant", ONE_OF_EACH, ids=lambda variant: variant.name)
async def test_greedy_tokens_of_torch(variant: Variant, tmp_path: Path) -> None:
    await _check(variant, tmp_path / "model", "torch")
