"""`LLM` and `AsyncLLMEngine` on a small random checkpoint."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS, wait_until
from taco_llm import (
    LLM,
    AsyncLLMEngine,
    EngineArgs,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
)
from taco_proto.errors import ConfigurationError, InvalidParameterError

pytestmark = pytest.mark.kernels

ENGINE: dict[str, Any] = {"num_gpu_blocks_override": 256, "num_threads": 1, "max_num_seqs": 8}
GREEDY = SamplingParams(temperature=0, max_tokens=6)
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with LLM(str(checkpoint), **ENGINE) as engine:
        yield engine


def num_requests(llm: LLM) -> int:
    return llm._engine._scheduler.engine.num_requests


def test_outputs_have_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"Prompt {'x' * (i % 7)} {i}" for i in range(24)]
    params = [
        SamplingParams(temperature=0, max_tokens=1 + i % 5, ignore_eos=True) for i in range(24)
    ]
    together = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in together] == prompts
    assert [len(output.outputs[0].token_ids) for output in together] == [
        1 + i % 5 for i in range(24)
    ]
    alone = llm.generate(prompts[5], params[5], use_tqdm=False)[0]
    assert alone.outputs[0].token_ids == together[5].outputs[0].token_ids
    assert all(output.finished for output in together)


def test_a_prompt_may_be_text_or_token_ids(llm: LLM) -> None:
    expected = llm.generate("Hello, world", GREEDY, use_tqdm=False)[0]
    token_ids = expected.prompt_token_ids
    for outputs in (
        llm.generate({"prompt": "Hello, world"}, GREEDY, use_tqdm=False),
        llm.generate([{"prompt_token_ids": token_ids}], GREEDY, use_tqdm=False),
        llm.generate({"prompt": None, "prompt_token_ids": token_ids}, GREEDY, use_tqdm=False),
        llm.generate(prompt_token_ids=token_ids, sampling_params=GREEDY, use_tqdm=False),
        llm.generate(prompt_token_ids=[token_ids], sampling_params=GREEDY, use_tqdm=False),
    ):
        assert len(outputs) == 1
        assert outputs[0].outputs[0].text == expected.outputs[0].text
        assert outputs[0].prompt == "Hello, world"


@pytest.mark.parametrize("stop", [None, "zzz"])
@pytest.mark.parametrize("best_of", [None, 3])
def test_the_cumulative_logprob_of_free_text_is_always_set(
    llm: LLM, stop: str | None, best_of: int | None
) -> None:
    params = SamplingParams(seed=3, max_tokens=5, ignore_eos=True, stop=stop, best_of=best_of)
    (output,) = llm.generate("Hello, world", params, use_tqdm=False)
    (asked,) = llm.generate("Hello, world", params.with_updates(logprobs=0), use_tqdm=False)
    sequence, entries = output.outputs[0], asked.outputs[0].logprobs
    assert entries is not None
    assert sequence.logprobs is None
    assert sequence.token_ids == asked.outputs[0].token_ids
    chosen = [entry[i].logprob for i, entry in zip(sequence.token_ids, entries, strict=True)]
    assert sequence.cumulative_logprob == pytest.approx(sum(chosen))
    assert asked.outputs[0].cumulative_logprob == pytest.approx(sum(chosen))


def test_constrained_answers_have_log_probabilities_only_on_request(llm: LLM) -> None:
    """Else no forced token would save its logits."""
    params = SamplingParams(
        temperature=0, max_tokens=8, structured_outputs=StructuredOutputsParams(regex="[0-9]{20}")
    )
    (output,) = llm.generate("Hello, world", params, use_tqdm=False)
    (asked,) = llm.generate("Hello, world", params.with_updates(logprobs=0), use_tqdm=False)
    sequence, entries = asked.outputs[0], asked.outputs[0].logprobs
    assert output.outputs[0].token_ids == sequence.token_ids
    assert output.outputs[0].cumulative_logprob is None
    assert entries is not None
    chosen = [entry[i].logprob for i, entry in zip(sequence.token_ids, entries, strict=True)]
    assert sequence.cumulative_logprob == pytest.approx(sum(chosen))


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1)
    output = llm.generate("Hello, world", params, use_tqdm=False)[0]
    sequence = output.outputs[0]
    assert sequence.logprobs is not None
    assert len(sequence.logprobs) == 3
    chosen = [sequence.logprobs[i][token] for i, token in enumerate(sequence.token_ids)]
    assert sequence.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in chosen))
    assert [entry.rank for entry in chosen] == [1, 1, 1]
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert output.prompt_logprobs[0] is None


def test_chat_takes_one_conversation_or_several(llm: LLM) -> None:
    one = [{"role": "user", "content": "Hi"}]
    two = [{"role": "user", "content": "Bye"}]
    single = llm.chat(one, GREEDY, use_tqdm=False)
    options: dict[str, Any] = {
        "chat_template_content_format": "openai",
        "mm_processor_kwargs": None,
    }
    assert llm.chat(one, GREEDY, use_tqdm=False, **options)[0].prompt_token_ids == (
        single[0].prompt_token_ids
    )
    with pytest.raises(InvalidParameterError, match="must be auto, string or openai"):
        llm.chat(one, GREEDY, use_tqdm=False, chat_template_content_format="html")
    both = llm.chat([one, two], GREEDY, use_tqdm=False)
    assert len(single) == 1
    assert [output.outputs[0].text for output in both[:1]] == [single[0].outputs[0].text]
    assert single[0].prompt == "<|bos|>user: Hi<|end|>\nassistant: "
    bare = llm.chat(one, GREEDY, use_tqdm=False, add_generation_prompt=False)
    assert bare[0].prompt == "<|bos|>user: Hi<|end|>\n"
    own = llm.chat(one, GREEDY, use_tqdm=False, chat_template="{{ messages[0].content }}!")
    assert own[0].prompt == "Hi!"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", "messages must be a list of messages or of conversations, got 'hi'"),
        ({"role": "user", "content": "Hi"}, "messages must be a list of messages or of conv"),
        (None, "messages must be a list of messages or of conversations, got None"),
        (["hi"], r"messages\[0\] must be a list of messages, got 'hi'"),
        ([USER, "hi"], r"messages\[1\] must be a mapping with role and content, got 'hi'"),
        ([[USER], USER], r"messages\[1\] must be a list of messages, got {"),
        ([{"content": "Hi"}], r"messages\[0\].role must be a string, got None"),
        (
            [{"role": "user"}],
            r"messages\[0\].content must be a string or a list of text parts, got",
        ),
        ([[USER], [{**USER, "content": 5}]], r"messages\[1\]\[0\].content must be a string"),
        ([{**USER, "content": []}], r"messages\[0\].content must be a string"),
        ([{"role": "tool", "content": None}], r"messages\[0\].content must be a string"),
        ([{**USER, "content": [{"type": "image"}]}], "content parts must be text"),
        ([[]], "messages must not be empty"),
    ],
    ids=str,
)
def test_invalid_messages_are_named(llm: LLM, messages: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message) as caught:
        llm.chat(messages, GREEDY, use_tqdm=False)
    assert caught.value.param == "messages"


def test_a_chat_shows_a_call_as_the_server_does(llm: LLM) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    history = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    template = "{{ messages[0].content }}{{ messages[0].tool_calls[0].function.arguments.x }}"
    (output,) = llm.chat(history, GREEDY, use_tqdm=False, chat_template=template)
    assert output.prompt == "1"


def test_the_defaults_are_those_of_generate(llm: LLM) -> None:
    params = llm.get_default_sampling_params().with_updates(max_tokens=1)
    assert params == SamplingParams(max_tokens=1)
    assert llm.generate("a", params, use_tqdm=False)[0].finished


def test_priorities_are_one_for_each_prompt(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, int]] = []
    complete = llm.llm_engine.complete

    async def note(
        prompt: str, params: SamplingParams, *, priority: int, lora_request: None
    ) -> RequestOutput:
        given.append((prompt, priority))
        return await complete(prompt, params, priority=priority, lora_request=lora_request)

    monkeypatch.setattr(llm.llm_engine, "complete", note)
    llm.generate(["a", "b"], GREEDY, use_tqdm=False, priority=[2, -1])
    llm.generate("c", GREEDY, use_tqdm=False)
    assert given == [("b", -1), ("a", 2), ("c", 0)]
    with pytest.raises(ValueError, match="priority must have one entry per prompt: got 1 for 2"):
        llm.generate(["a", "b"], GREEDY, use_tqdm=False, priority=[1])


def test_the_seed_makes_sampling_repeatable(checkpoint: Path) -> None:
    texts = []
    for seed in (1, 1, 2):
        with LLM(str(checkpoint), seed=seed, **ENGINE) as llm:
            outputs = llm.generate(["a", "a"], SamplingParams(max_tokens=8), use_tqdm=False)
            texts.append([output.outputs[0].text for output in outputs])
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1]


def test_the_progress_bar_counts_prompts(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    assert "2/2" in capsys.readouterr().err


def test_an_invalid_prompt_fails_alone(llm: LLM) -> None:
    bad: list[Any] = [{"prompt_token_ids": [10**6]}, [-1], [], {}, {"text": "x"}, 2.5, b"x"]
    for prompt in bad:
        with pytest.raises(InvalidParameterError):
            llm.generate(["fine", prompt, "fine"], GREEDY, use_tqdm=False)
    wait_until(lambda: num_requests(llm) == 0, "the end of all requests")
    with pytest.raises(InvalidParameterError, match="maximum context length"):
        llm.generate("x " * 2000, GREEDY, use_tqdm=False)
    with pytest.raises(ValueError, match="one entry per prompt: got 1 for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)
    with pytest.raises(ValueError, match="either prompts or prompt_token_ids"):
        llm.generate()
    assert llm.generate("fine", GREEDY, use_tqdm=False)[0].finished


@pytest.mark.parametrize("prompt", [b"import os", bytearray(b"ab"), memoryview(b"ab"), 2.5])
def test_bytes_are_no_token_ids(llm: LLM, prompt: Any) -> None:
    for given in (prompt, [prompt], {"prompt": prompt}, {"prompt_token_ids": prompt}):
        with pytest.raises(InvalidParameterError, match="a prompt must be a text, a list of token"):
            llm.generate(given, GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampling_params": {"n": 1}}, "sampling_params must be SamplingParams, got {'n': 1}"),
        ({"sampling_params": [GREEDY, 5]}, "sampling_params must be SamplingParams, got 5"),
        ({"priority": ["x", 1]}, "priority must be int, got 'x'"),
        ({"priority": 5}, "priority must be a list, got 5"),
    ],
)
def test_arguments_of_another_type_are_named(
    llm: LLM, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidParameterError, match=message) as caught:
        llm.generate(["a", "b"], use_tqdm=False, **arguments)
    assert caught.value.param in arguments


@pytest.mark.parametrize("argument", [{"sampling_params": {"n": 1}}, {"priority": "x"}])
async def test_the_async_engine_names_arguments_of_another_type(
    checkpoint: Path, argument: dict[str, Any]
) -> None:
    engine = AsyncLLMEngine.from_engine_args(EngineArgs(model=str(checkpoint), **ENGINE))
    try:
        with pytest.raises(InvalidParameterError, match=f"{next(iter(argument))} must be"):
            await engine.complete("a", **argument)
    finally:
        await engine.shutdown()


def test_llm_works_inside_a_running_event_loop(llm: LLM) -> None:
    async def cell() -> str:
        return llm.generate("Hello", GREEDY, use_tqdm=False)[0].outputs[0].text

    assert asyncio.run(cell()) == llm.generate("Hello", GREEDY, use_tqdm=False)[0].outputs[0].text


def test_an_interrupt_aborts_running_requests(llm: LLM) -> None:
    def interrupt() -> None:
        wait_until(lambda: num_requests(llm) > 0, "a request")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    params = SamplingParams(max_tokens=480, ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a"] * 64, params, use_tqdm=False)
    thread.join()
    wait_until(lambda: num_requests(llm) == 0, "the end of all requests")
    assert llm.generate("a", GREEDY, use_tqdm=False)[0].finished


def test_close_is_idempotent_and_final(checkpoint: Path) -> None:
    llm = LLM(str(checkpoint), **ENGINE)
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("a", use_tqdm=False)


def test_a_fork_is_told_to_make_an_llm(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    with pytest.raises(RuntimeError, match=f"belongs to process {process}, .* make a new LLM"):
        llm.generate("a", use_tqdm=False)


def test_an_asynchronous_engine_belongs_to_one_event_loop(checkpoint: Path) -> None:
    engine = AsyncLLMEngine(EngineArgs(model=str(checkpoint), **ENGINE))

    async def one_request() -> bool:
        return (await engine.complete("a", GREEDY)).finished

    with asyncio.Runner() as runner:
        assert runner.run(one_request())
        with pytest.raises(RuntimeError, match="belongs to the event loop of its first request"):
            asyncio.run(one_request())
        runner.run(engine.shutdown())


def test_a_program_may_end_without_closing(checkpoint: Path) -> None:
    program = (
        "import sys\nfrom taco_llm import LLM, SamplingParams\n"
        f"llm = LLM({str(checkpoint)!r}, num_gpu_blocks_override=64, num_threads=1)\n"
        "print(len(llm.generate('a', SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)"
        "[0].outputs[0].token_ids))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_vllm_arguments_are_accepted(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(checkpoint)
    neutral: dict[str, Any] = {
        "tensor_parallel_size": 1,
        "quantization": None,
        "enforce_eager": None,
    }
    with LLM(path, **ENGINE, **neutral, preemption_mode="swap", trust_remote_code=False):
        pass
    assert [r.getMessage() for r in caplog.records if r.name == "taco.llm"] == [
        "preemption_mode swap has no effect without enable_prefix_cache_offload"
    ]
    with pytest.raises(ConfigurationError, match="tensor_parallel_size=2 is not available"):
        LLM(path, tensor_parallel_size=2)
    with pytest.raises(TypeError, match="bogus"):
        LLM(path, bogus=1)
    with pytest.raises(ConfigurationError, match="model must be a string, got 5"):
        LLM(5)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match="block_size=7 is not available; choose from 8, 16, 32"
    ):
        LLM(path, block_size=7)


def test_positional_arguments_have_the_order_of_vllm(llm: LLM, checkpoint: Path) -> None:
    with LLM(
        *(str(checkpoint), None, "auto", False, False, 1, "float32", None, None, None, 3, 0.9),
        *(None, 0, None, None, 8192, False, False),
        **ENGINE,
    ) as other:
        theirs = other.generate("Hello", GREEDY, None, False, None, None, None)
        expected = llm.generate("Hello", GREEDY, use_tqdm=False)
        assert theirs[0].outputs[0].token_ids == expected[0].outputs[0].token_ids
    messages = [{"role": "user", "content": "Hi"}]
    own = llm.chat(messages, GREEDY, False, None, "{{ messages[0].content }}!", False)
    assert own[0].prompt == "Hi!"
    wrong: Any = object()
    with pytest.raises(InvalidParameterError, match="prompt_adapter_request is not available"):
        llm.generate("Hello", GREEDY, use_tqdm=False, prompt_adapter_request=wrong)
    with pytest.raises(InvalidParameterError, match="lora_request must be LoRARequest"):
        llm.chat(messages, GREEDY, False, wrong)


def test_unsupported_prompt_fields_are_rejected(llm: LLM) -> None:
    prompt = {"prompt": "What is this?", "multi_modal_data": {"image": object()}}
    with pytest.raises(InvalidParameterError, match="'multi_modal_data' of a prompt is not avail"):
        llm.generate(prompt, GREEDY, use_tqdm=False)
    assert llm.generate({**prompt, "multi_modal_data": None}, GREEDY, use_tqdm=False)[0].finished


def test_gpu_options_get_one_line_each_on_a_cpu(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lines(**options: Any) -> list[str]:
        caplog.clear()
        with LLM(str(checkpoint), device="cpu", **ENGINE, **options):
            return [r.getMessage() for r in caplog.records if "no effect" in r.getMessage()]

    assert lines() == []
    assert lines(gpu_memory_utilization=0.9, enforce_eager=True, max_seq_len_to_capture=8192) == [
        "gpu_memory_utilization has no effect on a CPU",
        "enforce_eager has no effect on a CPU",
        "max_seq_len_to_capture has no effect on a CPU",
    ]


def test_get_and_set_tokenizer(checkpoint: Path) -> None:
    with LLM(str(checkpoint), **ENGINE) as llm:
        tokenizer = llm.get_tokenizer()
        expected = llm.generate("Hello, world", GREEDY, use_tqdm=False)[0]
        assert tokenizer.encode("Hello, world") == expected.prompt_token_ids
        assert llm.llm_engine is llm.llm_engine
        changed = type(tokenizer).from_pretrained(checkpoint, bos_token="<|end|>")
        changed.backend_tokenizer.normalizer = tokenizers.normalizers.Lowercase()
        llm.set_tokenizer(changed)
        assert llm.get_tokenizer() is changed
        output = llm.generate("HELLO", GREEDY, use_tqdm=False)[0]
        assert output.prompt_token_ids == changed.encode("hello")
    with (
        LLM(str(checkpoint), skip_tokenizer_init=True, **ENGINE) as llm,
        pytest.raises(ConfigurationError, match="there is no tokenizer"),
    ):
        llm.get_tokenizer()


def test_a_tokenizer_that_cannot_be_read_ends_the_start_before_weights_are(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path)
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match="cannot load the tokenizer in"):
        LLM(str(model), **ENGINE)


def test_without_a_tokenizer(checkpoint: Path) -> None:
    with LLM(str(checkpoint), skip_tokenizer_init=True, **ENGINE) as llm:
        output = llm.generate(prompt_token_ids=[5, 6], sampling_params=GREEDY, use_tqdm=False)[0]
        assert len(output.outputs[0].token_ids) == 6
        assert output.outputs[0].text == ""
        assert output.prompt is None
        with pytest.raises(InvalidParameterError):
            llm.generate("text", GREEDY, use_tqdm=False)


async def test_the_async_engine_streams_growing_outputs(checkpoint: Path) -> None:
    engine = AsyncLLMEngine.from_engine_args(EngineArgs(model=str(checkpoint), **ENGINE))
    params = SamplingParams(temperature=0, max_tokens=12, n=2, ignore_eos=True)
    outputs = [output async for output in engine.generate("Hello", params, "r1")]
    assert [output.request_id for output in outputs] == ["r1"] * len(outputs)
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    for index in range(2):
        texts = [output.outputs[index].text for output in outputs]
        assert all(new.startswith(old) for old, new in pairwise(texts))
        assert len(outputs[-1].outputs[index].token_ids) == 12
    await engine.shutdown()


async def test_the_async_engine_aborts(checkpoint: Path) -> None:
    engine = AsyncLLMEngine.from_engine_args(EngineArgs(model=str(checkpoint), **ENGINE))
    scheduler = engine._scheduler.engine
    long = SamplingParams(max_tokens=400, ignore_eos=True)

    async def read(request_id: str) -> RequestOutput:
        outputs = []
        async for output in engine.generate("Hello", long, request_id):
            outputs.append(output)
            if not first.done():
                first.set_result(None)
        return outputs[-1]

    first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    reader = asyncio.create_task(read("r1"))
    await first
    with pytest.raises(ValueError, match="in use"):
        await anext(engine.generate("x", long, "r1"))
    await engine.abort("r1")
    output = await reader
    assert output.finished
    assert output.outputs[0].finish_reason == "abort"

    leaver = engine.generate("Hello", long, "r2")
    await anext(leaver)
    await leaver.aclose()
    await engine.abort("r2")
    await asyncio.to_thread(wait_until, lambda: scheduler.num_requests == 0, "the end of all")
    text_engine = await engine._started()
    stats = await text_engine.client.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_workers) == (0, 0, 1)
    assert stats.num_free_blocks == stats.num_blocks == 256
    await engine.shutdown()
