"""Device, host and disk tiers: a small device gives the same tokens with every tier."""

from pathlib import Path

import pytest

from support.checkpoints import make_checkpoint
from support.engine_driver import make_request
from support.local_engine import Generated, generate, serve
from support.models import kernels_for
from support.patience import PATIENCE_SECONDS
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.worker import Worker

NUM_PROMPTS = 6
PROMPTS = [[5 + i, *range(20, 70)] for i in range(NUM_PROMPTS)]  # three blocks and a bit
KV_BYTES = 8 << 20


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), initializer_range=0.1)


async def ask_twice(
    path: Path,
    disk: Path | None = None,
    *,
    host_kv_bytes: int,
    first: list[list[int]] = PROMPTS,
) -> list[Generated]:
    """Each prompt alone, after others or itself; a device of ten blocks."""
    config = WorkerConfig(
        model=ModelConfig(model=str(path), dtype="float32"),
        num_blocks=10,
        max_num_seqs=4,
        host_kv_bytes=host_kv_bytes,
        kv_disk_path=None if disk is None else str(disk),
        kv_disk_bytes=KV_BYTES,
    )
    worker = Worker(config, lambda count: kernels_for("kernels", 2))
    got = []
    async with serve(worker, max_num_batched_tokens=64) as service:
        for handle, prompt in enumerate(first + PROMPTS):
            request = make_request(
                handle, prompt, max_tokens=16, ignore_eos=True, temperature=0.0, logprobs=0
            )
            got.append(await generate(service, [request]))
        await service.drain(PATIENCE_SECONDS)
    worker.close()
    return got


def tokens_of(got: list[Generated]) -> list[list[int]]:
    return [received.tokens[handle, 0] for handle, received in enumerate(got)]


def cached_of(got: list[Generated]) -> list[int]:
    return [received.cached[handle, 0] for handle, received in enumerate(got)]


async def test_tokens_are_the_same_with_every_tier(model_path: Path, tmp_path: Path) -> None:
    without = await ask_twice(model_path, host_kv_bytes=0)
    assert cached_of(without) == [0] * 2 * NUM_PROMPTS

    host = await ask_twice(model_path, host_kv_bytes=KV_BYTES)
    assert cached_of(host) == [0] * NUM_PROMPTS + [48] * NUM_PROMPTS
    assert tokens_of(host) == tokens_of(without)
    assert [r.logprobs for r in host] == [r.logprobs for r in without], "bit for bit"

    await ask_twice(model_path, tmp_path, host_kv_bytes=KV_BYTES)
    answers = tokens_of(without)[:NUM_PROMPTS]
    turns = [[*prompt, *answer, 7] for prompt, answer in zip(PROMPTS, answers, strict=True)]
    restarted = await ask_twice(model_path, tmp_path, host_kv_bytes=KV_BYTES, first=turns)
    assert cached_of(restarted) == [64] * NUM_PROMPTS + [48] * NUM_PROMPTS, "answers, too"
    assert tokens_of(restarted)[NUM_PROMPTS:] == tokens_of(without)[NUM_PROMPTS:]
    logprobs = [received.logprobs[handle, 0] for handle, received in enumerate(restarted)]
    expected = [received.logprobs[handle, 0] for handle, received in enumerate(without)]
    assert logprobs[NUM_PROMPTS:] == expected[NUM_PROMPTS:]
