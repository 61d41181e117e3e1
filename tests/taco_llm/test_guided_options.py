"""Constraints offline, in all forms that vLLM's versions take, and what chats take."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.checkpoints import make_checkpoint
from taco_llm import (
    LLM,
    GuidedDecodingParams,
    GuidedDecodingRequest,
    LLMGuidedOptions,
    SamplingParams,
    StructuredOutputsParams,
)
from taco_proto.errors import InvalidParameterError

pytestmark = pytest.mark.kernels

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
    "required": ["a"],
}
FREE = SamplingParams(max_tokens=80, seed=3)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    checkpoint: Path = make_checkpoint(tmp_path_factory.mktemp("model"))
    with LLM(str(checkpoint), num_gpu_blocks_override=256, num_threads=1) as engine:
        yield engine


def text_of(llm: LLM, params: SamplingParams = FREE, **arguments: Any) -> str:
    (output,) = llm.generate("Hello", params, use_tqdm=False, **arguments)
    assert output.outputs[0].finish_reason == "stop"
    return output.outputs[0].text


def test_a_request_constrains_all_texts(llm: LLM) -> None:
    options: LLMGuidedOptions = {
        "guided_json": SCHEMA,
        "guided_decoding_backend": "outlines",
        "guided_whitespace_pattern": " ",
    }
    text = text_of(llm, guided_options_request=options)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert text.startswith("{ ")
    for request, texts in (
        (GuidedDecodingRequest(guided_choice=["yes", "no"]), ("yes", "no")),
        (GuidedDecodingRequest(guided_regex="ab{2}"), ("abb",)),
        (GuidedDecodingRequest(guided_grammar='root ::= "x" | "y"'), ("x", "y")),
    ):
        outputs = llm.generate(["a", "b"], FREE, use_tqdm=False, guided_options_request=request)
        assert all(output.outputs[0].text in texts for output in outputs)
    objects = GuidedDecodingRequest(guided_json_object=True)
    one = FREE.with_updates(max_tokens=1)
    assert (
        llm.generate("a", one, use_tqdm=False, guided_options_request=objects)[0]
        .outputs[0]
        .text.startswith("{")
    )


def test_a_request_without_a_constraint_asks_for_nothing(llm: LLM) -> None:
    (free,) = llm.generate("Hello", FREE, use_tqdm=False)
    for nothing in ({}, {"guided_regex": None}, GuidedDecodingRequest()):
        (same,) = llm.generate("Hello", FREE, use_tqdm=False, guided_options_request=nothing)  # type: ignore[arg-type]
        assert same.outputs[0].token_ids == free.outputs[0].token_ids


def test_wrong_requests_are_rejected(llm: LLM) -> None:
    with pytest.raises(InvalidParameterError, match="exactly one"):
        GuidedDecodingRequest(guided_regex="a", guided_choice=["a"])
    with pytest.raises(InvalidParameterError, match="backend must be one of auto, guidance"):
        GuidedDecodingRequest(guided_regex="a", guided_decoding_backend="mine")
    wrong: Any
    for wrong in ({"guided_regexp": "a"}, "guided_regex", object()):
        with pytest.raises(InvalidParameterError, match="guided_options_request must be"):
            llm.generate("Hello", FREE, use_tqdm=False, guided_options_request=wrong)
    has_one = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    with pytest.raises(InvalidParameterError, match="exclude each other"):
        llm.generate("Hello", has_one, use_tqdm=False, guided_options_request={"guided_regex": "b"})


def test_the_options_of_both_parameter_classes(llm: LLM) -> None:
    closed = {"disable_additional_properties": True, "disable_any_whitespace": True}
    for params in (
        SamplingParams(structured_outputs=StructuredOutputsParams(json=SCHEMA, **closed)),  # type: ignore[arg-type]
        SamplingParams(guided_decoding=GuidedDecodingParams(json=SCHEMA, **closed)),  # type: ignore[arg-type]
        SamplingParams(
            guided_decoding=GuidedDecodingParams(
                json=json.dumps(SCHEMA),
                backend="xgrammar:disable-any-whitespace,disable-additional-properties,no-fallback",
            )
        ),
    ):
        constraint = params.structured_outputs
        assert constraint is not None
        assert constraint.disable_any_whitespace
        assert constraint.disable_additional_properties
        text = text_of(llm, params.with_updates(max_tokens=80, seed=3))
        assert " " not in text
        assert json.loads(text).keys() <= {"a", "b"}
    assert GuidedDecodingParams.from_optional(json=None, regex=None) is None
    assert GuidedDecodingParams.from_optional(regex="a") == GuidedDecodingParams(regex="a")
    with pytest.raises(InvalidParameterError, match="options of backend are no-fallback"):
        GuidedDecodingParams(regex="a", backend="auto:fast")


def test_a_chat_takes_variables_documents_and_a_turn_to_continue(llm: LLM) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
        "{{ tone }}{{ documents[0].text }}{{ tools[0].function.name }}"
    )
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The"}]
    (whole,) = llm.chat(
        turns,
        FREE,
        use_tqdm=False,
        chat_template=template,
        chat_template_kwargs={"tone": "calm"},
        documents=[{"text": "one"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
    )
    assert whole.prompt == "user:Hi;assistant:The;calmonef"
    (continued,) = llm.chat(
        turns,
        FREE,
        use_tqdm=False,
        chat_template="{% for m in messages %}{{ m.content }};{% endfor %}",
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert continued.prompt == "Hi;The"


def test_detokenize_false_gives_ids_alone(llm: LLM) -> None:
    (text,) = llm.generate("Hello", FREE, use_tqdm=False)
    (ids,) = llm.generate("Hello", FREE.with_updates(detokenize=False), use_tqdm=False)
    assert ids.outputs[0].text == ""
    assert ids.outputs[0].token_ids == text.outputs[0].token_ids


def test_truncation_keeps_either_side(llm: LLM) -> None:
    prompt = list(range(5, 40))
    for side, kept in (("left", prompt[-7:]), ("right", prompt[:7])):
        params = SamplingParams(max_tokens=1, truncate_prompt_tokens=7, truncation_side=side)
        (output,) = llm.generate(prompt_token_ids=prompt, sampling_params=params, use_tqdm=False)
        assert output.prompt_token_ids == kept
    with pytest.raises(InvalidParameterError, match="truncation_side must be left or right"):
        SamplingParams(truncation_side="middle")
