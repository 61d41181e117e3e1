"""A checkpoint whose weights hold NaN for one token: requests with that token fail, and no other.

Rows of a batch share matrix products, attention kernels and freed KV blocks: that the others' text
stays as it is shows that no NaN crosses from one to the other.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from support.checkpoints import POISON, make_poisoned_checkpoint
from support.engine_driver import make_request
from support.local_engine import Generated, generate_beside, serve
from support.models import kernels_for
from support.patience import PATIENCE_SECONDS
from support.serving import Serving, free_port
from taco_gateway.engine.engine_client import EngineError
from taco_llm import LLM, SamplingParams
from taco_proto import inference_pb2 as pb
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.inference_pb2_grpc import InferenceStub
from taco_proto.requests import GenerateRequest
from taco_worker.worker import Worker

PROMPT = list(range(20, 60))
POISONED = [*PROMPT[:20], POISON, *PROMPT[20:]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_poisoned_checkpoint(tmp_path_factory.mktemp("model"))


def healthy_requests() -> list[GenerateRequest]:
    """Greedy and random, with and without what changes logits or reads them."""
    parameters: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.7, "top_k": 5, "logprobs": 2},
        {"temperature": 0.0, "prompt_logprobs": 1},
        {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 0},
    ]
    banned: dict[str, Any] = {
        "logit_bias": {POISON: -100.0}
    }  # nothing healthy may choose that token
    return [
        make_request(
            handle, PROMPT[: 7 + 5 * handle], max_tokens=20, ignore_eos=True, **own, **banned
        )
        for handle, own in enumerate(parameters)
    ]


def poisoned_requests(first_handle: int) -> list[GenerateRequest]:
    parameters: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.9, "logprobs": 2},
        {"temperature": 0.8, "min_p": 0.1, "n": 2},
        {"temperature": 0.0, "prompt_logprobs": 1},
    ]
    requests = [
        make_request(first_handle + i, POISONED, max_tokens=20, **own)
        for i, own in enumerate(parameters)
    ]
    # The answer comes to the token, by a bias: the step behind it fails.
    biased = make_request(
        first_handle + len(parameters),
        PROMPT[:9],
        max_tokens=5,
        temperature=0.0,
        ignore_eos=True,
        logit_bias={POISON: 100.0},
    )
    return [*requests, biased]


@pytest.mark.parametrize("serves", ["torch", "kernels"])
@pytest.mark.parametrize("budget", [16, 2048], ids=["in chunks", "at once"])
async def test_invalid_logits_fail_only_their_own_requests(
    checkpoint: Path, serves: str, budget: int
) -> None:
    model = ModelConfig(model=str(checkpoint), dtype="float32", max_model_len=128)
    config = WorkerConfig(model=model, num_blocks=64, max_num_seqs=16, num_threads=1)
    worker = Worker(config, lambda count: kernels_for(serves, count or 1))
    healthy = healthy_requests()
    poisoned = poisoned_requests(len(healthy))
    mixed = [request for pair in zip(healthy, poisoned, strict=True) for request in pair]
    async with serve(worker, max_num_batched_tokens=budget) as service:
        alone, *others = await generate_beside(service, healthy, mixed)
    if serves == "kernels":  # torch's products depend on the number of rows
        assert all(bits_of(got) >= bits_of(alone) for got in others)
    together = others[0]
    handles = [request.handle for request in poisoned]
    assert {handle: code for handle, (code, _) in together.errors.items()} == dict.fromkeys(
        handles, 500
    )
    assert set(together.reasons_of_errors.values()) == {"invalid_logits"}
    assert together.tokens[handles[-1], 0] == [POISON]
    assert not any(together.tokens.get((handle, 0)) for handle in handles[:-1])


def bits_of(got: Generated) -> set[tuple[object, ...]]:
    """All log probabilities of sequences that ended well."""
    answers = {(*key, *got.logprobs.get(key, [])) for key in got.reasons}
    prompts = {(handle, *rows) for handle, rows in got.prompt_logprobs.items()}
    return answers | {row for row in prompts if (row[0], 0) in got.reasons}


@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "with drafts"])
def test_offline_a_failed_request_raises_and_the_next_one_runs(
    checkpoint: Path, drafts: bool
) -> None:
    speculation: dict[str, Any] = (
        {"speculative_model": "[ngram]", "ngram_prompt_lookup_max": 3} if drafts else {}
    )
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    biased = params.with_updates(logit_bias={POISON: 100.0})
    prompt = [20, 21, 22, 23] * 6
    with LLM(
        str(checkpoint), num_gpu_blocks_override=64, num_threads=1, dtype="float32", **speculation
    ) as llm:
        before = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids
        with pytest.raises(EngineError, match="no finite probabilities"):
            llm.generate([[*prompt, POISON, *prompt]], params, use_tqdm=False)
        with pytest.raises(EngineError, match="no finite probabilities"):
            llm.generate([prompt], biased, use_tqdm=False)
        after = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids
    assert list(after) == list(before)


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def serving(
    checkpoint: Path, grpc_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    flags = ["--served-model-name", "tiny", "--num-gpu-blocks-override", "64"]
    flags += ["--dtype", "float32", "--grpc-port", str(grpc_port)]
    with Serving(tmp_path_factory.mktemp("serving"), checkpoint, *flags) as running:
        yield running.wait_ready()


def body(prompt: list[int], **fields: object) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True} | fields


def test_http_returns_500_and_the_service_stays_ready(serving: Serving) -> None:
    with httpx.Client(base_url=serving.url, timeout=PATIENCE_SECONDS) as client:
        before = client.post("/v1/completions", json=body(PROMPT)).json()["choices"]
        answer = client.post("/v1/completions", json=body(POISONED))
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "invalid_logits")
        assert "no finite probabilities" in error["message"]
        assert answer.headers["x-request-id"]
        assert client.post("/v1/completions", json=body(PROMPT)).json()["choices"] == before
    assert serving.metric("taco:row_errors_total") == 1
    assert serving.metric("taco:failed_steps_total") == 0
    assert serving.is_idle()


def test_a_stream_ends_with_an_error_event(serving: Serving) -> None:
    biased = body(PROMPT, stream=True, logit_bias={str(POISON): 100}, max_tokens=5)
    with httpx.Client(base_url=serving.url, timeout=PATIENCE_SECONDS) as client:
        answer = client.post("/v1/completions", json=biased)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert answer.status_code == 200
    assert json.loads(events[-1])["error"]["code"] == "invalid_logits"
    assert json.loads(events[0])["choices"]


async def test_grpc_returns_internal(serving: Serving, grpc_port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        request = pb.CompleteRequest(model="tiny", token_ids=pb.TokenIds(ids=POISONED))
        call = InferenceStub(channel).Complete(request)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in call:
                pass
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "no finite probabilities" in (failed.value.details() or "")
