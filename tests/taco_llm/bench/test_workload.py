"""The requests of a benchmark run."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint_tokenizer import save_tokenizer
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_llm.bench.dataset import Sample, read_dataset
from taco_llm.bench.workload import Workload
from taco_llm.bench.workload_args import WorkloadArgs
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(directory)
    loaded = load_tokenizer(ModelConfig(model=str(directory)))
    assert loaded is not None
    return loaded


def conversation(prompt: str, answer: str, first: str = "human") -> dict[str, Any]:
    turns = [{"from": first, "value": prompt}, {"from": "gpt", "value": answer}]
    return {"id": "x", "conversations": turns}


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def synthetic(seed: int = 0, num_warmups: int = 0, **args: Any) -> list[list[int]]:
    requests = Workload(WorkloadArgs(**args), None, as_text=False).requests(seed, num_warmups)
    assert all(isinstance(request.prompt, list) for request in requests)
    assert all(request.prompt_len == len(request.prompt) for request in requests)
    return [list(request.prompt) for request in requests]  # type: ignore[arg-type]


def test_random_prompts_have_the_lengths_asked_for() -> None:
    args = WorkloadArgs(num_prompts=9, random_input_len=20, random_output_len=7)
    requests = Workload(args, None, as_text=False).requests(0)
    assert [request.prompt_len for request in requests] == [20] * 9
    assert [request.output_len for request in requests] == [7] * 9


def test_a_range_of_lengths() -> None:
    args = WorkloadArgs(
        num_prompts=500, random_input_len=10, random_output_len=4, random_range_ratio=0.5
    )
    requests = Workload(args, None, as_text=False).requests(0)
    assert {request.prompt_len for request in requests} == set(range(5, 16))
    assert {request.output_len for request in requests} == set(range(2, 7))


def test_the_seed_decides() -> None:
    assert synthetic(1) == synthetic(1)
    assert synthetic(1) != synthetic(2)


def test_ids_stay_within_the_vocabulary() -> None:
    ids = {i for prompt in synthetic(random_vocab_size=20) for i in prompt}
    assert ids == {16, 17, 18, 19}


def test_prefix_groups_are_used_in_turn() -> None:
    prompts = synthetic(
        num_prompts=6, random_input_len=8, shared_prefix_len=30, num_prefix_groups=2
    )
    assert all(len(prompt) == 38 for prompt in prompts)
    assert [prompt[:30] == prompts[0][:30] for prompt in prompts] == [True, False] * 3
    assert prompts[1][:30] == prompts[3][:30] == prompts[5][:30]
    assert len({tuple(prompt[30:]) for prompt in prompts}) == 6


def test_warm_ups_share_no_prefix() -> None:
    prompts = synthetic(num_warmups=2, num_prompts=3, random_input_len=8, shared_prefix_len=30)
    assert [len(prompt) for prompt in prompts] == [8, 8, 38, 38, 38]


def test_chat_gets_the_text_of_random_ids(tokenizer: Tokenizer) -> None:
    args = WorkloadArgs(num_prompts=3, random_input_len=20, shared_prefix_len=5)
    requests = Workload(args, tokenizer, as_text=True).requests(0)
    assert all(isinstance(request.prompt, str) for request in requests)
    assert {request.prompt_len for request in requests} == {25}
    assert str(requests[0].prompt)[:5] == str(requests[1].prompt)[:5]


def test_a_dataset_gives_prompts_and_the_lengths_of_its_answers(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    answer = "Hello, World! How are you?"
    samples = [conversation(f"The quick brown fox {i}", answer) for i in range(9)]
    path = write(tmp_path / "d.json", samples)
    args = WorkloadArgs(dataset_path=path, num_prompts=5)
    requests = Workload(args, tokenizer, as_text=False).requests(3)
    assert len({str(request.prompt) for request in requests}) == 5
    expected = len(tokenizer.encode(answer, add_special_tokens=False))
    assert {request.output_len for request in requests} == {expected}
    assert requests == Workload(args, tokenizer, as_text=False).requests(3)
    assert requests != Workload(args, tokenizer, as_text=False).requests(4)


def test_conversations_that_do_not_fit_are_left_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    good = "Tell me more about that fox."
    samples = [conversation(good, "It is brown and quick."), conversation("word " * 400, good)]
    samples += [conversation("a", good), conversation(good + good, "b")]
    path = write(tmp_path / "d.json", samples)
    args = WorkloadArgs(dataset_path=path, num_prompts=3, dataset_max_len=100)
    requests = Workload(args, tokenizer, as_text=True).requests(0)
    assert [request.prompt for request in requests] == [
        good
    ] * 3  # repeated, since the dataset has only one
    args = WorkloadArgs(dataset_path=path, dataset_max_len=5)
    with pytest.raises(ConfigurationError, match="at most --dataset-max-len"):
        Workload(args, tokenizer, as_text=True).requests(0)


def test_a_fixed_length_needs_no_tokenizer(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", '{"prompt": "a"}\n\n{"text": "b", "output": "c"}\n')
    args = WorkloadArgs(dataset_path=path, num_prompts=2, output_len=6)
    requests = Workload(args, None, as_text=False).requests(0)
    assert sorted((str(r.prompt), r.output_len, r.prompt_len) for r in requests) == [
        ("a", 6, 0),
        ("b", 6, 0),
    ]


def test_a_dataset_with_a_shared_prefix(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "d.jsonl", '{"prompt": "Tell me a story, please"}\n')
    args = WorkloadArgs(dataset_path=path, num_prompts=1, output_len=6, shared_prefix_len=12)
    (request,) = Workload(args, tokenizer, as_text=False).requests(0)
    assert str(request.prompt).endswith("Tell me a story, please")
    assert len(str(request.prompt)) > len("Tell me a story, please")


def test_the_first_exchange_must_begin_with_the_human(tmp_path: Path) -> None:
    good = conversation("question", "answer")
    good["conversations"].append({"from": "human", "value": "more"})
    content = [
        good,
        conversation("hello", "hi", first="gpt"),
        conversation("", "empty"),
        {"conversations": []},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        "nonsense",
    ]
    assert read_dataset(write(tmp_path / "d.json", content)) == [
        Sample("question", "answer"),
        Sample("q", "a"),
    ]


@pytest.mark.parametrize("space", ["\u2028", "\u2029", "\x85", "\x0b"])
def test_json_lines_may_contain_other_line_breaks(tmp_path: Path, space: str) -> None:
    path = tmp_path / "d.jsonl"
    lines = [json.dumps({"prompt": f"a{space}b"}, ensure_ascii=False)] * 2
    path.write_text("\n".join(lines), encoding="utf-8")
    assert [sample.prompt for sample in read_dataset(str(path))] == [f"a{space}b"] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the dataset"),
        ("", "contains no prompt"),
        ("[]", "contains no prompt"),
        ("[1, 2", "is not valid JSON"),
        ('[{"conversations": [7, 8]}]', "contains no prompt"),
        ("prompt one\n", "neither a JSON list nor JSON lines (line 1)"),
        ('{"prompt": "a"}\nb\n', "(line 2)"),
        ('{"question": "a"}\n', "contains no prompt"),
    ],
)
def test_an_invalid_dataset_is_an_error(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError) as error:
        read_dataset(str(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_tokenizers_are_clear_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", '{"prompt": "a"}\n')
    with pytest.raises(ConfigurationError, match="--tokenizer, which counts"):
        Workload(WorkloadArgs(dataset_path=path), None, as_text=False)
    with pytest.raises(ConfigurationError, match="random prompts need --tokenizer"):
        Workload(WorkloadArgs(), None, as_text=True)
    args = WorkloadArgs(dataset_path=path, output_len=1, shared_prefix_len=1)
    with pytest.raises(ConfigurationError, match="shared prefixes need --tokenizer"):
        Workload(args, None, as_text=False)
