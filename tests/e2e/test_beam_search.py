"""Beam search equals `generate(num_beams=…)` of transformers; HTTP, offline and faults."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from support.checkpoints import make_checkpoint
from support.engine_driver import make_request
from support.local_engine import Generated, generate, serve
from support.real_app import real_app
from taco_llm import LLM, BeamSearchParams, PromptInputs, SamplingParams
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.errors import InvalidParameterError
from taco_proto.requests import FinishReason, GenerateRequest
from taco_proto.steps import StepOutput, StepPlan
from taco_worker.worker import Worker

VOCAB_SIZE = 384
ENDS = list(range(0, VOCAB_SIZE, 12))

RECIPES: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "LlamaForCausalLM"},
    "mistral with a window": {"architecture": "MistralForCausalLM", "sliding_window": 11},
    "qwen2, tied": {"architecture": "Qwen2ForCausalLM", "tie_word_embeddings": True},
    "gpt2": {"architecture": "GPT2LMHeadModel"},
}

# Fields of the request, which the oracle gets under its own names. No two beams are so close that
# rounding chooses: noise of 1e-5 of the weights changes no text.
SEARCHES: list[dict[str, Any]] = [
    {"n": 1, "best_of": 1},
    {"n": 4, "best_of": 4},
    {"n": 2, "best_of": 6, "early_stopping": True},
    {"n": 3, "best_of": 3, "early_stopping": "never", "length_penalty": 2.0},
    {"n": 3, "best_of": 5, "length_penalty": 0.0},
    {"n": 4, "best_of": 4, "length_penalty": -1.0, "early_stopping": "never"},
    {"n": 2, "best_of": 4, "max_tokens": 1},
    {"n": 8, "best_of": 8, "stop_token_ids": []},
    {"n": 3, "best_of": 4, "min_tokens": 6},
    {"n": 3, "best_of": 4, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"n": 2, "best_of": 3, "allowed_token_ids": list(range(5, 60))},
]


def prompts() -> list[list[int]]:
    """Of different lengths, around those of blocks."""
    rng = random.Random(0)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (3, 15, 16, 17, 40)]


def requests(**common: Any) -> list[GenerateRequest]:
    """Each search with one of the prompts."""
    return [
        make_request(
            i,
            prompts()[i % len(prompts())],
            **{
                "use_beam_search": True,
                "max_tokens": 14,
                "stop_token_ids": ENDS,
                "ignore_eos": True,
                "logprobs": 0,
                **search,
                **common,
            },
        )
        for i, search in enumerate(SEARCHES)
    ]


@dataclass(frozen=True)
class Text:
    token_ids: list[int]
    score: float


class Oracle:
    def __init__(self, directory: Path) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float64
        )
        self._model.generation_config = transformers.GenerationConfig()
        self.texts = cache(self._texts)

    def answers(self) -> dict[int, list[Text]]:
        return {request.handle: self.texts(request.handle) for request in requests()}

    @torch.inference_mode()
    def _texts(self, handle: int) -> list[Text]:
        request = requests()[handle]
        sampling = request.sampling
        prompt = torch.frombuffer(bytearray(request.token_ids), dtype=torch.int32).long()[None]
        options: dict[str, Any] = {}
        if sampling.allowed_token_ids is not None:
            banned = set(range(VOCAB_SIZE)) - set(sampling.allowed_token_ids)
            options["suppress_tokens"] = sorted(banned)
        found = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            num_beams=sampling.num_sequences,
            num_return_sequences=sampling.n,
            max_new_tokens=sampling.max_tokens,
            min_new_tokens=sampling.min_tokens or None,
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
            repetition_penalty=sampling.repetition_penalty,
            no_repeat_ngram_size=sampling.no_repeat_ngram_size,
            eos_token_id=list(sampling.stop_token_ids or ()) or None,
            pad_token_id=VOCAB_SIZE - 1,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **options,
        )
        length = prompt.shape[1]
        if sampling.num_sequences == 1:
            return [Text(found.sequences[0, length:].tolist(), 0.0)]
        lengths = (found.beam_indices >= 0).sum(dim=1).tolist()
        return [
            Text(sequence[length : length + count].tolist(), float(score))
            for sequence, count, score in zip(
                found.sequences, lengths, found.sequences_scores, strict=True
            )
        ]


def make_worker(directory: Path, worker: type[Worker] = Worker, **changes: Any) -> Worker:
    model = ModelConfig(model=str(directory), max_model_len=128, dtype="float32")
    settings: dict[str, Any] = {"block_size": 16, "num_blocks": 400, "max_num_seqs": 16}
    return worker(WorkerConfig(model=model, num_threads=1, **settings | changes))


@pytest.fixture(scope="module", params=RECIPES.values(), ids=list(RECIPES))
def recipe_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), **request.param)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> Oracle:
    return Oracle(checkpoint)


def check(received: Generated, answers: dict[int, list[Text]]) -> None:
    assert received.errors == {}
    for request in requests():
        sampling, handle = request.sampling, request.handle
        texts = answers[handle]
        assert len(texts) == sampling.n
        for index, text in enumerate(texts):
            tokens = received.tokens[handle, index]
            assert tokens == text.token_ids, SEARCHES[handle]
            if sampling.num_sequences > 1:
                total = sum(received.logprobs[handle, index])
                score = total / len(tokens) ** sampling.length_penalty
                assert score == pytest.approx(text.score, abs=1e-3)
            is_stopped = tokens[-1] in (sampling.stop_token_ids or ())
            reason = FinishReason.STOP if is_stopped else FinishReason.LENGTH
            assert received.reasons[handle, index] is reason


async def test_texts_are_those_of_transformers(recipe_dir: Path) -> None:
    worker = make_worker(recipe_dir)
    async with serve(worker) as service:
        received = await generate(service, requests())
        assert service.engine.num_free_blocks == service.engine.num_blocks
    check(received, Oracle(recipe_dir).answers())
    stopped = [reason for reason in received.reasons.values() if reason is FinishReason.STOP]
    assert len(stopped) > 5, "no text has met an end: the test shows nothing"


@pytest.mark.parametrize(
    "config",
    [
        {"run_ahead": False},
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 17},
        {"max_num_seqs": 3},
    ],
    ids=str,
)
async def test_texts_do_not_depend_on_the_schedule(
    checkpoint: Path, oracle: Oracle, config: dict[str, Any]
) -> None:
    async with serve(make_worker(checkpoint), **config) as service:
        received = await generate(service, requests())
    check(received, oracle.answers())


@pytest.mark.parametrize("swaps", [False, True], ids=["recompute", "swap"])
async def test_preempted_beams_continue(checkpoint: Path, swaps: bool) -> None:
    """Urgent requests grow and take the blocks of beams away.

    Searches with few beams: others release the blocks of held beams before they are preempted.
    """
    urgent = [
        make_request(100 + i, [i], max_tokens=100, ignore_eos=True, priority=-1) for i in range(2)
    ]
    common: dict[str, Any] = {"use_beam_search": True, "ignore_eos": True, "max_tokens": 70}
    searches = [
        make_request(i, prompt, best_of=1 + i % 2, **common) for i, prompt in enumerate(prompts())
    ]
    async with serve(make_worker(checkpoint)) as service:
        expected = await generate(service, searches)
    worker = make_worker(checkpoint, num_blocks=20, host_kv_bytes=2**22 if swaps else 0)
    async with serve(worker, swaps_preempted=swaps) as service:
        received = await generate(service, [*searches, *urgent])
        assert service.engine.counters.num_preemptions > 0
        assert service.engine.num_free_blocks == service.engine.num_blocks
    for key, tokens in expected.tokens.items():
        assert received.tokens[key] == tokens


class BrokenOnce(Worker):
    """Its seventh step fails: every beam is computed again from its tokens."""

    num_steps = 0

    def execute(self, plan: StepPlan) -> StepOutput:
        self.num_steps += 1
        if self.num_steps == 7:
            return StepOutput(epoch=plan.epoch, step_id=plan.step_id, error="it breaks")
        return super().execute(plan)


async def test_a_failed_step_changes_no_text(checkpoint: Path, oracle: Oracle) -> None:
    worker = make_worker(checkpoint, worker=BrokenOnce)
    async with serve(worker) as service:
        received = await generate(service, requests())
        assert service.engine.counters.num_failed_steps == 1
    check(received, oracle.answers())


async def test_a_prompt_in_the_prefix_cache_gives_the_same_texts(
    checkpoint: Path, oracle: Oracle
) -> None:
    async with serve(make_worker(checkpoint)) as service:
        await generate(service, requests())
        received = await generate(service, requests())
        assert received.cached[4, 0] == 32
    check(received, oracle.answers())


# ---------------------------------------------------------------- the clients' ways


@pytest.fixture
async def http(checkpoint: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with real_app(checkpoint) as client:
        yield client


def body_of(handle: int) -> dict[str, Any]:
    return {
        "prompt": prompts()[handle % len(prompts())],
        "use_beam_search": True,
        "max_tokens": 14,
        "stop_token_ids": ENDS,
        "ignore_eos": True,
        "return_token_ids": True,
        **SEARCHES[handle],
    }


async def test_completions_return_the_best_texts(http: httpx.AsyncClient, oracle: Oracle) -> None:
    answers = await asyncio.gather(
        *(http.post("/v1/completions", json=body_of(i)) for i in range(len(SEARCHES)))
    )
    for handle, answer in enumerate(answers):
        assert answer.status_code == 200, answer.text
        choices = answer.json()["choices"]
        expected = [text.token_ids for text in oracle.texts(handle)]
        assert [choice["token_ids"] for choice in choices] == expected
        usage = answer.json()["usage"]
        assert usage["completion_tokens"] == sum(map(len, expected))


async def test_chat_returns_the_best_texts_with_log_probabilities(
    http: httpx.AsyncClient,
) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "use_beam_search": True,
        "n": 2,
        "best_of": 4,
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 3,
        "ignore_eos": True,
    }
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    totals = []
    for choice in answer["choices"]:
        content = choice["logprobs"]["content"]
        assert len(content) == 8
        assert all(len(entry["top_logprobs"]) == 3 for entry in content)
        totals.append(sum(entry["logprob"] for entry in content))
    assert totals == sorted(totals, reverse=True)


async def test_a_stop_string_cuts_the_text_after_the_search(http: httpx.AsyncClient) -> None:
    body = {**body_of(7), "return_token_ids": False}
    whole = (await http.post("/v1/completions", json=body)).json()["choices"]
    stop = whole[0]["text"][3:5]
    cut = (await http.post("/v1/completions", json={**body, "stop": stop})).json()["choices"]
    assert len(cut) == len(whole)
    for before, after in zip(whole, cut, strict=True):
        assert after["text"] == before["text"].split(stop)[0]
        if stop in before["text"]:
            assert (after["finish_reason"], after["stop_reason"]) == ("stop", stop)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"stream": True}, "stream"),
    ({"best_of": 65}, "best_of"),
    ({"n": 65, "best_of": None}, "n"),
    ({"top_p": 0.5}, "top_p"),
    ({"top_k": 5}, "top_k"),
    ({"min_p": 0.1}, "min_p"),
    ({"length_penalty": 11}, "length_penalty"),
    ({"early_stopping": "soon"}, "early_stopping"),
    ({"guided_regex": "a+"}, "use_beam_search"),
    ({"stop_token_ids": list(range(33))}, "stop_token_ids"),
    ({"use_beam_search": False, "length_penalty": 2.0}, "length_penalty"),
    ({"use_beam_search": False, "early_stopping": True}, "early_stopping"),
    ({"use_beam_search": "yes"}, "use_beam_search"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=[str(fields) for fields, _ in BAD])
async def test_bad_fields_are_named(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post("/v1/completions", json={**body_of(1), **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_offline_beam_search_has_the_results_of_vllm(checkpoint: Path) -> None:
    prompt, params = prompts()[4], BeamSearchParams(beam_width=3, max_tokens=7, ignore_eos=True)
    with LLM(str(checkpoint), num_gpu_blocks_override=64, num_threads=1) as llm:
        texts: list[PromptInputs] = [{"prompt_token_ids": prompt}, "Hello"]
        first, second = llm.beam_search(texts, params)
        (same,) = llm.generate(
            {"prompt_token_ids": prompt},
            SamplingParams(n=3, use_beam_search=True, max_tokens=7, ignore_eos=True),
            use_tqdm=False,
        )
        with pytest.raises(InvalidParameterError, match="max_tokens"):
            llm.beam_search("Hello", BeamSearchParams(4, 0))
    assert len(first.sequences) == len(second.sequences) == 3
    for sequence, output in zip(first.sequences, same.outputs, strict=True):
        assert sequence.tokens == prompt + output.token_ids
        assert sequence.cum_logprob == pytest.approx(output.cumulative_logprob)
        assert len(sequence.logprobs) == 7
        assert sequence.finish_reason == "length"
        assert sequence.text is not None
        assert sequence.text.endswith(output.text)
    scores = [sequence.cum_logprob for sequence in first.sequences]
    assert scores == sorted(scores, reverse=True)
