"""The engine compared with transformers: equal tokens for any schedule and batch."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

from support.checkpoints import make_checkpoint
from support.engine_driver import make_request
from support.local_engine import generate, serve
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.requests import FinishReason, GenerateRequest
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepOutput, StepPlan
from taco_worker.worker import Worker

MAX_TOKENS = 20
BLOCK_SIZE = 16
MAX_MODEL_LEN = 128
VOCAB_SIZE = 384

RECIPES: dict[str, dict[str, object]] = {
    "llama": {
        "architecture": "LlamaForCausalLM",
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 80,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral with a window": {"architecture": "MistralForCausalLM", "sliding_window": 11},
    "qwen2, tied": {"architecture": "Qwen2ForCausalLM", "tie_word_embeddings": True},
    "opt": {"architecture": "OPTForCausalLM"},
    "opt, post-norm": {
        "architecture": "OPTForCausalLM",
        "do_layer_norm_before": False,
        "word_embed_proj_dim": 32,
    },
    "gpt2": {"architecture": "GPT2LMHeadModel"},
}

# How the same work is scheduled. The tiny pool holds about two of the sequences below at a time.
SCHEDULES: dict[str, dict[str, object]] = {
    "roomy": {},
    "one step at a time": {"run_ahead": False},
    "small chunks": {"max_num_batched_tokens": 17},
    "tiny pool": {"num_blocks": 8},
    "tiny pool, small chunks, one step at a time": {
        "num_blocks": 8,
        "max_num_batched_tokens": 9,
        "run_ahead": False,
    },
    "no prefix cache, three sequences at most": {"enable_prefix_caching": False, "max_num_seqs": 3},
}


def make_worker(model_dir: Path, num_blocks: int = 400, dtype: str = "float32") -> Worker:
    model = ModelConfig(model=str(model_dir), max_model_len=MAX_MODEL_LEN, dtype=dtype)
    return Worker(
        WorkerConfig(
            model=model,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            max_num_seqs=16,
            num_threads=1,
        )
    )


def prompts() -> list[list[int]]:
    """Ragged ones, half of which begin alike."""
    rng = random.Random(0)
    common = [rng.randrange(VOCAB_SIZE) for _ in range(2 * BLOCK_SIZE)]
    return [
        (common if i % 2 else []) + [rng.randrange(VOCAB_SIZE) for _ in range(length)]
        for i, length in enumerate((1, 2, 15, 16, 17, 30, 41, 32, 5, 33))
    ]


class Oracle:
    def __init__(self, model_dir: Path) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32
        )
        self.continuation = cache(self._continuation)

    def greedy(self, prompt: list[int]) -> list[int]:
        return self.continuation(tuple(prompt))

    @torch.inference_mode()
    def _continuation(self, prompt: tuple[int, ...]) -> list[int]:
        tokens = list(prompt)
        for _ in range(MAX_TOKENS):
            logits = self._model(torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
        return tokens[len(prompt) :]


@pytest.fixture(scope="module", params=RECIPES.values(), ids=list(RECIPES))
def recipe_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), **request.param)


@pytest.fixture(scope="module")
def oracle(recipe_dir: Path) -> Oracle:
    return Oracle(recipe_dir)


@pytest.fixture(scope="module")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def worker(llama_dir: Path) -> Worker:
    return make_worker(llama_dir)


def greedy_requests() -> list[GenerateRequest]:
    return [
        make_request(i, prompt, temperature=0.0, ignore_eos=True, max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(prompts())
    ]


def varied_requests() -> list[GenerateRequest]:
    """Sampled in all ways, some several times, of different lengths."""
    ways: list[dict[str, object]] = [
        {"temperature": 1.0},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 1.2, "top_p": 0.8, "logprobs": 2},
        {"temperature": 0.9, "top_k": 5, "min_p": 0.02, "n": 3},
        {"temperature": 0.7, "presence_penalty": 0.9, "frequency_penalty": 0.4},
        {"temperature": 1.0, "no_repeat_ngram_size": 2, "min_tokens": 5},
        {"temperature": 0.0, "logit_bias": {7: 3.0, 9: -3.0}, "stop_token_ids": list(range(60))},
        {"temperature": 2.0, "prompt_logprobs": 1},
    ]
    requests = []
    for i, prompt in enumerate(prompts()):
        sampling = SamplingParams(seed=100 + i, max_tokens=5 + 3 * (i % 6)).with_updates(
            **ways[i % len(ways)]
        )
        requests.append(replace(make_request(i, prompt), sampling=sampling))
    return requests


async def run_alone(
    worker: Worker, requests: Sequence[GenerateRequest]
) -> dict[tuple[int, int], list[int]]:
    """Each request's tokens when nothing runs beside it."""
    tokens: dict[tuple[int, int], list[int]] = {}
    for request in requests:
        worker.reset()
        async with serve(worker, run_ahead=False, enable_prefix_caching=False) as service:
            tokens |= (await generate(service, [request])).tokens
    return tokens


@pytest.mark.parametrize("run_ahead", [True, False])
async def test_greedy_tokens_are_those_of_transformers(
    recipe_dir: Path, oracle: Oracle, run_ahead: bool
) -> None:
    """With chunked prefills among decodes, prefix hits, and preemption by a tiny pool."""
    worker = make_worker(recipe_dir, num_blocks=8)
    async with serve(worker, max_num_batched_tokens=17, run_ahead=run_ahead) as service:
        received = await generate(service, greedy_requests())
        counters = service.engine.counters
        assert counters.num_preemptions > 0
        assert counters.prefix_cache_hits > 0
    for i, prompt in enumerate(prompts()):
        assert received.tokens[i, 0] == oracle.greedy(prompt)
        assert received.reasons[i, 0] == FinishReason.LENGTH


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
async def test_sampled_tokens_do_not_depend_on_the_schedule(
    llama_dir: Path, worker: Worker, schedule: dict[str, object]
) -> None:
    requests = varied_requests()
    alone = await run_alone(worker, requests)
    scheduler_fields = {name: value for name, value in schedule.items() if name != "num_blocks"}
    if "num_blocks" in schedule:
        worker = make_worker(llama_dir, num_blocks=8)
    worker.reset()
    async with serve(worker, **scheduler_fields) as service:
        received = await generate(service, requests)
    assert received.errors == {}
    assert received.tokens == alone


async def test_output_does_not_depend_on_other_requests(worker: Worker) -> None:
    requests = varied_requests()
    alone = await run_alone(worker, requests)
    rng = random.Random(1)
    for _ in range(3):
        some = rng.sample(requests, rng.randint(2, len(requests)))
        worker.reset()
        async with serve(worker, max_num_batched_tokens=rng.choice([20, 64, 2048])) as service:
            received = await generate(service, some)
        assert received.tokens == {key: alone[key] for key in received.tokens}


async def test_sequences_of_one_request_differ(worker: Worker) -> None:
    worker.reset()
    async with serve(worker) as service:
        request = make_request(1, prompts()[5], n=4, temperature=1.0, max_tokens=12)
        received = await generate(service, [request])
    assert len({tuple(tokens) for tokens in received.tokens.values()}) == 4


async def test_a_cached_second_turn_gives_the_same_tokens(worker: Worker) -> None:
    prompt = prompts()[7]
    worker.reset()
    async with serve(worker) as service:
        request = make_request(1, prompt, temperature=0.0, ignore_eos=True, max_tokens=20)
        first = await generate(service, [request])
        longer = prompt + first.tokens[1, 0][:12]
        second = await generate(
            service,
            [make_request(2, longer, temperature=0.0, ignore_eos=True, max_tokens=8)],
        )
    assert second.cached[2, 0] >= len(prompt)
    assert second.tokens[2, 0] == first.tokens[1, 0][12:]


async def test_a_sequence_ends_at_its_stop_token_and_counts_it(worker: Worker) -> None:
    prompt = prompts()[6]
    worker.reset()
    async with serve(worker) as service:
        greedy = make_request(1, prompt, temperature=0.0, ignore_eos=True, max_tokens=MAX_TOKENS)
        whole = (await generate(service, [greedy])).tokens[1, 0]
        stop = whole[5]
        sampling = greedy.sampling.with_updates(stop_token_ids=[stop])
        received = await generate(service, [replace(greedy, handle=2, sampling=sampling)])
    assert received.tokens[2, 0] == whole[: whole.index(stop) + 1]
    assert received.reasons[2, 0] == FinishReason.STOP
    assert received.stop_tokens[2, 0] == stop


class FailingWorker(Worker):
    """Gets a plan that it cannot run, and later another one.

    The second time all sequences of the step have had a token since the first: those that are in
    two failed steps in a row are given up.
    """

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config)
        self._num_steps = 0
        self._num_failures = 0
        self._slots_with_progress: set[int] = set()

    def execute(self, plan: StepPlan) -> StepOutput:
        self._num_steps += 1
        if plan.joined is not None:
            self._slots_with_progress -= set(plan.joined.slots.tolist())
        if self._num_failures == 0:
            fails = self._num_steps == 3
        else:
            has_progress = self._slots_with_progress.issuperset(plan.slots.tolist())
            fails = self._num_failures == 1 and plan.slots.size > 1 and has_progress
        if fails:
            self._num_failures += 1
            self._slots_with_progress = set()
            return super().execute(replace(plan, slots=plan.slots + 1000))
        output = super().execute(plan)
        self._slots_with_progress |= set(output.slots.tolist())
        return output


@pytest.mark.parametrize("run_ahead", [True, False])
async def test_failed_steps_lose_and_repeat_no_token(
    llama_dir: Path, worker: Worker, run_ahead: bool
) -> None:
    requests = varied_requests()
    alone = await run_alone(worker, requests)
    failing = FailingWorker(
        WorkerConfig(
            model=ModelConfig(model=str(llama_dir), max_model_len=MAX_MODEL_LEN),
            block_size=BLOCK_SIZE,
            num_blocks=400,
            num_threads=1,
        )
    )
    async with serve(failing, run_ahead=run_ahead, max_num_batched_tokens=64) as service:
        received = await generate(service, requests)
        assert service.engine.counters.num_failed_steps == 2
    assert received.errors == {}
    assert received.tokens == alone


async def test_bfloat16_tokens_differ_only_at_near_ties(
    llama_dir: Path,
) -> None:
    worker = make_worker(llama_dir, dtype="bfloat16")
    requests = [
        make_request(i, prompt, temperature=0.0, ignore_eos=True, max_tokens=20, logprobs=2)
        for i, prompt in enumerate(prompts())
    ]
    alone = {}
    gaps: dict[int, list[float]] = {}
    for request in requests:
        worker.reset()
        async with serve(worker) as service:
            received = await generate(service, [request])
        alone[request.handle] = received.tokens[request.handle, 0]
        gaps[request.handle] = received.gaps[request.handle, 0]
    worker.reset()
    async with serve(worker, max_num_batched_tokens=50) as service:
        together = await generate(service, requests)
    for handle, tokens in alone.items():
        other = together.tokens[handle, 0]
        first_close = next((i for i, gap in enumerate(gaps[handle]) if gap < 0.05), len(tokens))
        assert other[:first_close] == tokens[:first_close]
