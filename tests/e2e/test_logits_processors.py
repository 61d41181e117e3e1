"""Logits processors from the HTTP body, the gRPC message and `LLM` to the tokens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.logits_processors import Counts, Force, Raises, ban_last
from support.patience import PATIENCE_SECONDS
from support.serving import Serving, free_port
from taco_gateway.engine.engine_client import EngineError
from taco_llm import LLM, SamplingParams
from taco_proto import inference_pb2 as pb
from taco_proto.errors import ConfigurationError, InvalidParameterError
from taco_proto.inference_pb2_grpc import InferenceStub

MODULE = '''
import math
import os
import time


class Force:
    """Each token is the next of a list."""

    def __init__(self, context):
        self.vocab_size = context.vocab_size

    def new_req_logits_processor(self, params):
        arguments = params.extra_args or {}
        if "fail_at" in arguments:
            return self.failing(arguments["fail_at"])
        token_ids = arguments.get("forced")
        if token_ids is None:
            return None
        if not all(isinstance(i, int) and 0 <= i < self.vocab_size for i in token_ids):
            raise ValueError("forced must be a list of token ids")

        def force(prompt, output, logits):
            while len(output) == 5 and not os.path.exists(arguments.get("awaited", "/")):
                time.sleep(0.01)
            token_id = token_ids[len(output) % len(token_ids)]
            kept = float(logits[token_id])
            logits.fill_(-math.inf)
            logits[token_id] = kept
            return logits

        return force

    def failing(self, place):
        def fail(output, logits):
            if len(output) == place:
                raise RuntimeError("secret")
            return logits

        return fail


class Named(Force):
    pass
'''
FORCED = list(range(40, 60))
PROMPT = list(range(20, 60))
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NAMED = "own_processors:Named"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def serving(
    checkpoint: Path, grpc_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("serving")
    (directory / "own_processors.py").write_text(MODULE)
    flags = ["--served-model-name", "tiny", "--num-gpu-blocks-override", "64"]
    flags += ["--grpc-port", str(grpc_port), "--logits-processors", "own_processors:Force", NAMED]
    flags += ["--logits-processor-pattern", ".*:Named"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(directory))
        server = Serving(directory, checkpoint, *flags)
    with server as running:
        yield running.wait_ready()


@pytest.fixture
def http(serving: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=serving.url, timeout=PATIENCE_SECONDS) as client:
        yield client


def body(**fields: object) -> dict[str, Any]:
    settings = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "max_tokens": 30}
    return {"model": "tiny", "return_token_ids": True, **settings, **fields}


def tokens_of(answer: httpx.Response) -> list[int]:
    (choice,) = answer.json()["choices"]
    token_ids: list[int] = choice["token_ids"]
    return token_ids


def test_arguments_reach_the_processor_on_both_routes(http: httpx.Client) -> None:
    plain = tokens_of(http.post("/v1/completions", json=body()))
    forced = http.post("/v1/completions", json=body(vllm_xargs={"forced": FORCED}))
    assert tokens_of(forced) == [*FORCED, *FORCED[:10]]
    assert plain != tokens_of(forced)
    chat = body(messages=[{"role": "user", "content": "hi"}], vllm_xargs={"forced": [50]})
    assert tokens_of(http.post("/v1/chat/completions", json=chat)) == [50] * 30
    assert tokens_of(http.post("/v1/completions", json=body())) == plain


def test_a_processor_that_must_be_named_runs_last(http: httpx.Client) -> None:
    answer = http.post(
        "/v1/completions", json=body(logits_processors=[NAMED], vllm_xargs={"forced": [41, 42]})
    )
    assert tokens_of(answer) == [41, 42] * 15


BAD: list[tuple[dict[str, Any], int, str | None, str | None, str]] = [
    ({"logits_processors": ["own_processors:Force"]}, 400, "logits_processors", None, "may name"),
    ({"logits_processors": ["os:system"]}, 400, "logits_processors", None, "may name"),
    ({"logits_processors": [{"qualname": NAMED}]}, 400, "logits_processors[0]", None, "string"),
    ({"logits_processors": NAMED}, 400, "logits_processors", None, "list"),
    ({"logits_processors": [NAMED] * 1000}, 400, "logits_processors", None, "at most 64"),
    ({"logits_processors": ["x" * 10**6]}, 400, "logits_processors", None, "characters"),
    ({"vllm_xargs": [1]}, 400, "vllm_xargs", None, "dictionary"),
    ({"vllm_xargs": {"forced": [1] * 10**5}}, 400, "vllm_xargs", None, "at most 16384"),
    ({"vllm_xargs": {"forced": [-1]}}, 400, "vllm_xargs", "invalid_arguments",
     "list of token ids"),
    ({"vllm_xargs": {"forced": 3}}, 500, None, "processor_failed", "failed: TypeError"),
    ({"vllm_xargs": {"fail_at": 0}}, 500, None, "processor_failed", "failed: RuntimeError"),
    ({"vllm_xargs": {"fail_at": 7}}, 500, None, "processor_failed", "failed: RuntimeError"),
]  # fmt: skip


def test_what_cannot_run_is_one_error(serving: Serving, http: httpx.Client) -> None:
    plain = tokens_of(http.post("/v1/completions", json=body()))
    for fields, status, param, code, words in BAD:
        answer = http.post("/v1/completions", json=body(**fields))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (status, param, code), error
        assert words in error["message"]
        assert "extra_args" not in error["message"]
        assert "secret" not in answer.text
        assert tokens_of(http.post("/v1/completions", json=body())) == plain
    assert serving.metric("taco:row_errors_total") == 4
    assert serving.metric("taco:failed_steps_total") == 0
    assert serving.is_idle()


def test_a_stream_ends_with_an_error_event(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json=body(stream=True, vllm_xargs={"fail_at": 7}))
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert answer.status_code == 200
    assert json.loads(events[0])["choices"]
    assert json.loads(events[-1])["error"]["code"] == "processor_failed"


def test_a_killed_worker_changes_no_token(
    serving: Serving, http: httpx.Client, tmp_path: Path
) -> None:
    """The worker is killed inside a processor, and the next one makes the processor again."""
    awaited = tmp_path / "awaited"
    arguments = {"forced": FORCED, "awaited": str(awaited)}
    asked = body(stream=True, max_tokens=60, vllm_xargs=arguments)
    with http.stream("POST", "/v1/completions", json=asked) as answer:
        lines = answer.iter_lines()
        seen = [next(line for line in lines if line.startswith("data: {"))]
        serving.children()["worker"].kill()
        awaited.touch()
        seen += [line for line in lines if line.startswith("data: {")]
    choices = [json.loads(line[6:])["choices"][0] for line in seen]
    assert [token for choice in choices for token in choice["token_ids"]] == FORCED * 3


async def test_grpc(serving: Serving, grpc_port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub = InferenceStub(channel)

        def call(**sampling: Any) -> Any:
            fields = pb.TextSampling(max_tokens=4, temperature=0, ignore_eos=True, **sampling)
            prompt = pb.TokenIds(ids=PROMPT)
            return stub.Complete(pb.CompleteRequest(token_ids=prompt, sampling=fields))

        async def text(**sampling: Any) -> str:
            return "".join([reply.text async for reply in call(**sampling)])

        forced = await text(extra_args='{"forced": [50]}', logits_processors=[NAMED])
        assert forced == await text(extra_args='{"forced": [50]}')
        assert forced != await text()
        for sampling, status, param in (
            ({"logits_processors": ["os:system"]}, INVALID, "logits_processors"),
            ({"extra_args": "[1]"}, INVALID, "extra_args"),
            ({"extra_args": "{"}, INVALID, "extra_args"),
            ({"extra_args": '{"forced": [-1]}'}, INVALID, "extra_args"),
            ({"extra_args": '{"fail_at": 0}'}, grpc.StatusCode.INTERNAL, None),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await text(**sampling)
            assert failed.value.code() is status
            assert dict(failed.value.trailing_metadata() or ()).get("param") == param


def test_a_worker_with_a_broken_processor_does_not_start(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "broken_processors.py").write_text("raise OSError('no disk')")
    with Serving(tmp_path, checkpoint, "--logits-processors", "broken_processors:Any") as running:
        assert running.wait_ended() != 0
        assert "broken_processors:Any: OSError: no disk" in running.stderr


@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "with drafts"])
def test_offline_functions_change_the_logits(checkpoint: Path, drafts: bool) -> None:
    speculation: dict[str, Any] = (
        {"speculative_model": "[ngram]", "ngram_prompt_lookup_max": 3} if drafts else {}
    )
    seen: list[list[int]] = []

    def watch(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
        seen.append([*prompt, *output])
        return logits

    plain = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    changed = plain.with_updates(logits_processors=[ban_last, watch])
    settings = {"num_gpu_blocks_override": 64, "num_threads": 1, "max_num_seqs": 8, **speculation}
    with LLM(str(checkpoint), logits_processors=[Force], **settings) as llm:
        prompts = [PROMPT, [20, 21, 22, 23] * 6, PROMPT[:9]]

        def tokens(params: list[SamplingParams]) -> list[list[int]]:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            return [output.outputs[0].token_ids for output in outputs]

        first = tokens([plain, changed, plain])
        assert all(a != b for a, b in zip(first[1], first[1][1:], strict=False))
        assert seen
        assert all(tokens[: len(prompts[1])] == prompts[1] for tokens in seen)
        second = tokens([changed, plain, plain])
        assert first[2] == second[2]
        assert first[1] != second[1] or first[0] != second[0]
        forced = plain.with_updates(extra_args={"forced_token": 44})
        assert tokens([plain, forced, changed])[1] == [44] * 12
        several = plain.with_updates(n=2, temperature=1.0, logits_processors=[Counts()])
        if not drafts:
            assert len(llm.generate(PROMPT, several, use_tqdm=False)[0].outputs) == 2
        with pytest.raises(EngineError, match="Raises failed: RuntimeError: secret"):
            tokens([plain, plain.with_updates(logits_processors=[Raises(3)]), plain])
        assert tokens([plain] * 3)[2] == first[2]


def test_offline_processors_are_checked(checkpoint: Path) -> None:
    for wrong in (print, [3], [lambda logits: logits], [lambda a, b, c, d: d], "name"):
        with pytest.raises(InvalidParameterError, match="logits_processors") as rejected:
            SamplingParams(logits_processors=wrong)  # type: ignore[arg-type]
        assert rejected.value.param == "logits_processors"
    with pytest.raises(InvalidParameterError, match="extra_args"):
        SamplingParams(extra_args={"a": float("nan")})
    with pytest.raises(ConfigurationError, match="MODULE:CLASS"):
        LLM(str(checkpoint), logits_processors="processors", num_gpu_blocks_override=16)
