"""Offloaded prefixes return from host memory, with the same tokens."""

import random
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import make_checkpoint
from taco_llm import LLM, RequestOutput, SamplingParams

pytestmark = pytest.mark.kernels

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [[random.Random(seed).randrange(3, 384) for _ in range(70)] for seed in range(8)]
# Full blocks of 16 tokens of a prompt, and the blocks of a whole sequence.
NUM_CACHED, NUM_BLOCKS = 64, 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def generate(llm: LLM, prompts: list[list[int]]) -> list[RequestOutput]:
    return llm.generate(prompt_token_ids=prompts, sampling_params=GREEDY, use_tqdm=False)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_offloaded_prompts_are_loaded_instead_of_recomputed(
    checkpoint: Path, kv_cache_dtype: str
) -> None:
    engine: dict[str, Any] = {
        "num_threads": 1,
        "max_num_seqs": 4,
        "kv_cache_dtype": kv_cache_dtype,
    }
    with LLM(str(checkpoint), enable_prefix_caching=False, **engine) as llm:
        expected = tokens(generate(llm, PROMPTS))
    with LLM(
        str(checkpoint),
        num_gpu_blocks_override=2 * NUM_BLOCKS,
        enable_prefix_cache_offload=True,
        swap_space=0.01,
        **engine,
    ) as llm:
        assert tokens(generate(llm, PROMPTS)) == expected
        # One after another and all at once, with sequences that are preempted and resumed.
        for turn in range(3):
            again = [generate(llm, [prompt])[0] for prompt in PROMPTS]
            assert tokens(again) == expected
            if turn:
                found = [output.num_cached_tokens for output in again]
                assert min(found) >= NUM_CACHED
            assert tokens(generate(llm, PROMPTS[::-1])) == expected[::-1]
