"""Structured output with every drafter, and with forced tokens or without: the same tokens."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.serving import Serving
from taco_llm import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name_of_the_function": {"type": "string", "maxLength": 8},
        "arguments": {
            "type": "object",
            "properties": {
                "recursive": {"type": "boolean"},
                "number_of_items": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["recursive", "number_of_items"],
            "additionalProperties": False,
        },
        "status": {"enum": ["not started yet", "not finished yet", "done"]},
    },
    "required": ["name_of_the_function", "arguments", "status"],
    "additionalProperties": False,
}
# Free text up to a trigger. Behind it the text is forced, but for one choice.
TRIGGERED = (
    "start: TEXT call\nTEXT: /[^<]{0,30}/\n"
    'call: "<tool_call>{\\"name\\": \\"" ("find" | "sort") "\\", \\"arguments\\": {}}</tool_call>"'
)
CONSTRAINTS: list[dict[str, Any]] = [
    {"json": SCHEMA, "disable_any_whitespace": True},
    {"json": SCHEMA},
    {"grammar": TRIGGERED},
    {"regex": r"[0-9]{4}-[0-9]{2}-01T00:00:00\+00:00 \(UTC\)"},
]
QUESTIONS = ["What does json.dumps do?", "How do I sort a list?"]
ENGINE: dict[str, Any] = {"num_threads": 1, "num_gpu_blocks_override": 256}


def params() -> list[SamplingParams]:
    """Greedy, greedy again, so that it is a repetition, and sampled; free text at the end."""
    made = [
        SamplingParams(
            structured_outputs=StructuredOutputsParams(**constraint), max_tokens=120, **sampling
        )
        for sampling in ({"temperature": 0}, {"temperature": 0}, {"temperature": 0.9, "seed": 5})
        for constraint in CONSTRAINTS
    ]
    return [*made, SamplingParams(temperature=0.9, seed=5, max_tokens=20)]


def answers(llm: LLM) -> list[tuple[int, ...]]:
    """One after the other for the first question, all at once for the second."""
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    alone = [llm.chat([chats[0]], each, use_tqdm=False)[0] for each in params()]
    batched = llm.chat([chats[1]] * len(params()), params(), use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in (*alone, *batched)]


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, ...]]:
    with LLM("demo", max_forced_tokens=0, **ENGINE) as llm:
        return answers(llm)


def test_free_text_before_a_trigger_is_that_without_a_grammar() -> None:
    free = SamplingParams(temperature=0.7, seed=3, max_tokens=16)
    late = TRIGGERED.replace("{0,30}", "*")
    kept = SamplingParams(
        temperature=0.7,
        seed=3,
        max_tokens=16,
        structured_outputs=StructuredOutputsParams(grammar=late),
    )
    chat = [{"role": "user", "content": QUESTIONS[0]}]
    with LLM("demo", **ENGINE) as llm:
        found = [llm.chat([chat], each, use_tqdm=False)[0].outputs[0] for each in (free, kept)]
    assert found[0].text
    assert found[0].token_ids == found[1].token_ids


@pytest.mark.parametrize(
    "drafter",
    [
        {},
        {"lookahead_cache_config_dir": "."},
        {"speculative_model": "[ngram]", "ngram_prompt_lookup_max": 3},
        {"speculative_model": "demo-draft", "cpu_draft_worker": True},
        {"speculative_model": "demo-medusa"},
        {"speculative_model": "demo-eagle"},
    ],
    ids=["no drafter", "lookahead", "ngram", "draft model", "medusa", "eagle"],
)
@pytest.mark.parametrize("max_forced_tokens", [0, 15])
def test_with_each_drafter(
    drafter: dict[str, Any],
    max_forced_tokens: int,
    plain: list[tuple[int, ...]],
    tmp_path: Path,
) -> None:
    if "lookahead_cache_config_dir" in drafter:
        drafter = {**drafter, "lookahead_cache_config_dir": str(tmp_path)}
        (tmp_path / "lookahead_cache_config.json").write_text('{"cache_size": 100000}')
    with LLM("demo", max_forced_tokens=max_forced_tokens, **ENGINE, **drafter) as llm:
        assert answers(llm) == plain


def test_processes_and_a_worker_killed_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": QUESTIONS[0]}],
        "structured_outputs": CONSTRAINTS[0],
        "temperature": 0.9,
        "seed": 7,
        "max_tokens": 200,
    }
    with LLM("demo", max_forced_tokens=0, **ENGINE) as llm:
        asked = SamplingParams(
            structured_outputs=StructuredOutputsParams(**CONSTRAINTS[0]),
            temperature=0.9,
            seed=7,
            max_tokens=200,
        )
        (output,) = llm.chat([body["messages"]], asked, use_tqdm=False)
        expected = output.outputs[0].text
    json.loads(expected)
    flags = ["--speculative-model", "demo-draft", "--num-gpu-blocks-override", "256"]
    with (
        Serving(tmp_path, "demo", *flags).wait_ready() as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        url = "/v1/chat/completions"
        assert http.post(url, json=body).json()["choices"][0]["message"]["content"] == expected
        assert server.metric("vllm:spec_decode_num_accepted_tokens_total") > 20
        with http.stream("POST", url, json={**body, "stream": True}) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
            begin = ""
            while not begin:
                begin = _text(next(lines))
            server.children()["worker"].kill()
            assert begin + "".join(map(_text, lines)) == expected


def _text(line: str) -> str:
    choices = json.loads(line[6:])["choices"]
    return (choices[0]["delta"].get("content") or "") if choices else ""
