"""LoRA adapters by request, from `LLM` and over HTTP to the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.adapters import make_adapter
from support.checkpoints import make_checkpoint
from support.serving import Serving
from taco_llm import LLM, BeamSearchParams, LoRARequest, SamplingParams
from taco_proto.errors import ConfigurationError, InvalidParameterError

PROMPT = list(range(20, 60))  # some blocks, which the prefix cache keeps
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
NAMES = ("sql", "chat")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, base: Path) -> dict[str, str]:
    path = tmp_path_factory.mktemp("adapters")
    return {
        name: str(make_adapter(path / name, base, seed=i, rank=4 + i))
        for i, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module")
def expected(base: Path, adapters: dict[str, str]) -> dict[str, list[int]]:
    """The tokens of models into which each adapter was merged; "": of the base model."""
    tokens = {}
    for name in ("", *NAMES):
        with LLM(str(base), dtype="float32", merge_lora=adapters.get(name)) as llm:
            tokens[name] = tokens_of(llm, [PROMPT])[0]
    assert len({*map(tuple, tokens.values())}) == 3
    return tokens


@pytest.fixture(scope="module")
def llm(base: Path, adapters: dict[str, str]) -> Iterator[LLM]:
    with LLM(str(base), dtype="float32", lora_modules=adapters, enable_prefix_caching=True) as llm:
        yield llm


def tokens_of(llm: LLM, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    inputs: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(inputs, GREEDY, use_tqdm=False, **options)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_each_prompt_of_a_batch_has_its_adapter(
    llm: LLM, adapters: dict[str, str], expected: dict[str, list[int]]
) -> None:
    """Twice: the second time prompts are in the prefix cache, which adapters do not share."""
    requests = [LoRARequest("sql", 1, adapters["sql"]), None, LoRARequest("chat", 2), None]
    for _ in range(2):
        found = tokens_of(llm, [PROMPT] * 4, lora_request=requests)
        assert found == [expected[name] for name in ("sql", "", "chat", "")]
    assert tokens_of(llm, [PROMPT], lora_request=requests[0]) == [expected["sql"]]


def test_chat_and_beams_take_adapters(llm: LLM) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    template = "{{ messages[0].content }}"
    texts = {
        name: llm.chat(
            messages,
            GREEDY,
            use_tqdm=False,
            lora_request=None if name is None else LoRARequest(name),
            chat_template=template,
        )[0]
        .outputs[0]
        .text
        for name in (None, *NAMES)
    }
    assert len({*texts.values()}) == 3
    beams = BeamSearchParams(beam_width=2, max_tokens=8, ignore_eos=True)
    prompts: Any = [{"prompt_token_ids": PROMPT}]
    found = {
        name: llm.beam_search(prompts, beams, None if name is None else LoRARequest(name))[0]
        for name in (None, *NAMES)
    }
    assert len({tuple(output.sequences[0].tokens) for output in found.values()}) == 3


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (LoRARequest("other"), r"'other' is not one of those of lora_modules \(sql, chat\)"),
        (LoRARequest("sql", 1, "/another/path"), "not of '/another/path'"),
        ("sql", "lora_request must be LoRARequest"),
    ],
)
def test_requests_that_name_no_adapter(llm: LLM, wanted: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        tokens_of(llm, [PROMPT], lora_request=wanted)
    with pytest.raises(ValueError, match="lora_request must have one entry per prompt"):
        tokens_of(llm, [PROMPT], lora_request=[None, None])


def test_an_adapter_that_does_not_fit_is_one_line(base: Path, adapters: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="is no LoRA adapter"):
        LLM(str(base), lora_modules={"sql": str(base)})


def test_clients_name_adapters_as_their_model(
    base: Path, adapters: dict[str, str], expected: dict[str, list[int]], tmp_path: Path
) -> None:
    modules = [f"{name}={path}" for name, path in adapters.items()]
    flags = ["--served-model-name", "base", "--dtype", "float32", "--num-gpu-blocks-override", "64"]
    with (
        Serving(tmp_path, base, *flags, "--enable-lora", "--lora-modules", *modules) as running,
        openai.OpenAI(
            base_url=f"{running.wait_ready().url}/v1", api_key="none", max_retries=0
        ) as client,
    ):
        assert [model.id for model in client.models.list()] == ["base", *NAMES]
        for name in ("base", *NAMES):
            answer = client.completions.create(
                model=name,
                prompt=PROMPT,
                max_tokens=GREEDY.max_tokens,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
            assert answer.model == name
            token_ids: Any = getattr(answer.choices[0], "token_ids", None)
            assert token_ids == expected["" if name == "base" else name]
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt=PROMPT)
