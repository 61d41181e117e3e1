"""All services as processes, asked with the openai client."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import Serving
from taco_llm import LLM, SamplingParams

NAME = "tiny"
PROMPTS = [f"{'Tell me ' * (i % 5)}a story number {i}" for i in range(32)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=2048)


@pytest.fixture(scope="module")
def serving(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("serving")
    flags = ["--served-model-name", NAME, "--num-gpu-blocks-override", "1024"]
    with Serving(directory, checkpoint, *flags, "--max-num-seqs", "32") as running:
        yield running.wait_ready()


@pytest.fixture
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def completion(client: openai.OpenAI, prompt: str, max_tokens: int) -> Iterator[str]:
    """The pieces of a greedy streamed completion."""
    for chunk in client.completions.create(
        model=NAME,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    ):
        yield chunk.choices[0].text


def post(serving: Serving, path: str, body: bytes) -> tuple[int, Any]:
    request = urllib.request.Request(
        serving.url + path, data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def test_32_streams_give_what_the_offline_engine_gives(
    serving: Serving, checkpoint: Path
) -> None:
    async def answer(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(
            model=NAME, prompt=prompt, max_tokens=48, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async with openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="none") as client:
        online = await asyncio.gather(*(answer(client, prompt) for prompt in PROMPTS))
    with LLM(str(checkpoint), num_gpu_blocks_override=256, num_threads=1) as llm:
        offline = llm.generate(
            PROMPTS, SamplingParams(temperature=0, max_tokens=48), use_tqdm=False
        )
    assert online == [output.outputs[0].text for output in offline]
    wait_until(serving.is_idle, "an idle service")


def test_chat_streams_and_counts(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello!"}]
    whole = client.chat.completions.create(
        model=NAME, messages=messages, max_tokens=12, temperature=0
    )
    stream = client.chat.completions.create(
        model=NAME,
        messages=messages,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert whole.model == NAME


def test_a_disconnect_frees_its_blocks(serving: Serving, client: openai.OpenAI) -> None:
    pieces = completion(client, "Once upon a time", 1900)
    next(pieces)
    assert serving.metric("vllm:kv_cache_usage_perc") > 0
    pieces.close()  # type: ignore[attr-defined]
    client.close()
    wait_until(serving.is_idle, "free blocks after a disconnect")


async def test_aborts_in_flight_free_blocks_once(serving: Serving, client: openai.OpenAI) -> None:
    async def leave(impatient: openai.AsyncOpenAI, number: int) -> None:
        stream = await impatient.completions.create(
            model=NAME,
            prompt=PROMPTS[number],
            max_tokens=1900,
            n=1 + number % 2,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in range(number % 7):
            await anext(stream)
        await stream.close()

    async with openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="none") as impatient:
        await asyncio.gather(*(leave(impatient, number) for number in range(32)))
    await asyncio.to_thread(wait_until, serving.is_idle, "free blocks after aborts")
    assert len(list(completion(client, "Still there?", 5))) > 0


def test_invalid_requests_do_not_disturb_others(serving: Serving, client: openai.OpenAI) -> None:
    status, body = post(serving, "/v1/completions", b'{"prompt": "x"')
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=NAME, prompt="word " * 4000, max_tokens=5)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="unknown", prompt="x")
    with pytest.raises(openai.BadRequestError) as out_of_range:
        client.completions.create(model=NAME, prompt="x", temperature=-1)
    assert out_of_range.value.param == "temperature"
    status, body = post(serving, "/v1/completions", b'{"prompt": "x", "max_tokens": 3}')
    assert status == 200
    assert body["model"] == NAME
    wait_until(serving.is_idle, "an idle service")


@pytest.mark.parametrize("service", ["worker", "scheduler"])
def test_streams_continue_after_a_killed_service(
    serving: Serving, client: openai.OpenAI, service: str
) -> None:
    expected = "".join(completion(client, "Once upon a time", 500))
    pieces = completion(client, "Once upon a time", 500)
    text = next(pieces)
    victim = serving.children()[service]
    victim.kill()
    text += "".join(pieces)
    assert text == expected
    assert not victim.is_running() or serving.children()[service].pid != victim.pid
    wait_until(serving.is_idle, "an idle service")


def test_a_killed_gateway_loses_only_its_streams(serving: Serving, client: openai.OpenAI) -> None:
    pieces = completion(client, "Once upon a time", 1900)
    next(pieces)
    serving.children()["gateway"].kill()
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        list(pieces)

    def answers() -> bool:
        try:
            return bool(list(completion(client, "Still there?", 5)))
        except openai.APIError:
            return False

    wait_until(answers, "a new gateway")
    wait_until(serving.is_idle, "free blocks after the gateway's death")
