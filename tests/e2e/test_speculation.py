"""Speculative decoding end to end: every drafter gives the text of plain decoding."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import Serving, free_port
from taco_demo.locate import find_model
from taco_llm import LLM, SamplingParams
from taco_proto.errors import ConfigurationError

QUESTIONS = [
    "What does json.dumps do?",
    "How do I sort a list?",
    "What is os.path.join for?",
    "What does json.dumps do?",
]
GREEDY = SamplingParams(temperature=0, max_tokens=60)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=11, max_tokens=60, logprobs=2)


def chats() -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": question}] for question in QUESTIONS]


def answers(llm: LLM) -> list[tuple[str, Any]]:
    """Texts and log probabilities: twice greedy, so that the second time is a repetition."""
    outputs = [
        *llm.chat(chats(), GREEDY, use_tqdm=False),
        *llm.chat(chats(), GREEDY, use_tqdm=False),
        *llm.chat(chats(), SAMPLED, use_tqdm=False),
    ]
    return [(output.outputs[0].text, output.outputs[0].logprobs) for output in outputs]


@pytest.fixture(scope="module")
def plain() -> list[tuple[str, Any]]:
    with LLM("demo", num_threads=1, num_gpu_blocks_override=256) as llm:
        return answers(llm)


@pytest.mark.parametrize(
    "drafter",
    [
        {"lookahead_cache_config_dir": "."},
        {"speculative_model": "[ngram]", "ngram_prompt_lookup_max": 3},
        {"speculative_model": "demo-draft", "cpu_draft_worker": True},
        {"speculative_model": "demo-draft", "lookahead_cache_config_dir": "."},
        {"speculative_model": "demo-medusa"},
        {"speculative_model": "demo-eagle"},
    ],
    ids=["lookahead", "ngram", "draft model", "draft model and lookahead", "medusa", "eagle"],
)
def test_offline(drafter: dict[str, Any], plain: list[tuple[str, Any]], tmp_path: Path) -> None:
    if "lookahead_cache_config_dir" in drafter:
        drafter = {**drafter, "lookahead_cache_config_dir": str(tmp_path)}
        (tmp_path / "lookahead_cache_config.json").write_text('{"cache_size": 100000}')
    with LLM("demo", num_threads=1, num_gpu_blocks_override=256, **drafter) as llm:
        assert answers(llm) == plain


def test_logprobs_can_be_disabled() -> None:
    with LLM(
        "demo",
        num_threads=1,
        num_gpu_blocks_override=64,
        speculative_model="[ngram]",
        ngram_prompt_lookup_max=2,
        logprobs_during_spec_decoding=False,
    ) as llm:
        (output,) = llm.chat(chats()[:1], SAMPLED, use_tqdm=False)
        assert output.outputs[0].text
        assert not output.outputs[0].logprobs


def test_typical_acceptance_keeps_greedy_text(plain: list[tuple[str, Any]]) -> None:
    with LLM(
        "demo",
        num_threads=1,
        num_gpu_blocks_override=128,
        speculative_model="demo-draft",
        spec_decoding_acceptance_method="typical_acceptance_sampler",
    ) as llm:
        outputs = llm.chat(chats(), GREEDY, use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == [text for text, _ in plain[:4]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cpu_draft_worker": True}, "cpu_draft_worker needs speculative_model"),
        ({"speculative_model": "[ngram]"}, "needs ngram_prompt_lookup_max"),
        ({"speculative_model": "/no/such/model"}, "does not exist"),
        ({"num_speculative_tokens": 99}, "at most 32"),
        ({"lookahead_cache_config_dir": "/no/such/dir"}, "/no/such/dir"),
    ],
)
def test_invalid_speculation_arguments_are_clear_errors(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LLM("demo", num_gpu_blocks_override=64, **arguments)


def test_a_draft_model_with_another_vocabulary_is_rejected(tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other")
    with pytest.raises(ConfigurationError, match=r"a vocabulary of 384 tokens, but .* has"):
        LLM("demo", num_gpu_blocks_override=64, speculative_model=str(other))


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("serving")
    (directory / "lookahead_cache_config.json").write_text('{"cache_size": 100000}')
    flags = ["--speculative-model", "demo-draft", "--lookahead-cache-config-dir", str(directory)]
    flags += ["--log-level", "debug"]  # which says who attaches
    with Serving(directory, "demo", *flags, "--num-gpu-blocks-override", "256") as running:
        yield running.wait_ready()


def metric(serving: Serving, name: str) -> float:
    with urllib.request.urlopen(f"{serving.url}/metrics", timeout=PATIENCE_SECONDS) as response:
        text = response.read().decode()
    found = re.search(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def draft_workers(serving: Serving) -> list[psutil.Process]:
    children = psutil.Process(serving.process.pid).children(recursive=True)
    return [child for child in children if child.cmdline()[-1:] == ["draft-worker"]]


def ask(serving: Serving, question: str) -> str:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=60,
            stream=True,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_online_and_without_its_draft_worker(
    serving: Serving, plain: list[tuple[str, Any]]
) -> None:
    attached = lambda: serving.stderr.count("draft worker drafter-0 attached")  # noqa: E731
    wait_until(lambda: attached() == 1, "a draft worker")
    texts = [text for text, _ in plain[:4]]
    assert [ask(serving, question) for question in QUESTIONS] == texts
    assert metric(serving, "vllm:spec_decode_num_accepted_tokens_total") > 0
    assert 0 < metric(serving, "taco:lookahead_hit_rate") <= 1

    (process,) = draft_workers(serving)
    process.kill()
    assert [ask(serving, question) for question in QUESTIONS] == texts
    wait_until(lambda: attached() == 2, "the draft worker's successor")
    assert [ask(serving, question) for question in QUESTIONS] == texts


def test_a_draft_worker_of_another_vocabulary_ends_with_one_error(tmp_path: Path) -> None:
    other = str(make_checkpoint(tmp_path / "other"))
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "taco_llm.cli.main"]
    blocks = ["--num-threads", "1", "--num-gpu-blocks-override", "64"]
    demo = str(find_model("demo"))
    scheduler = subprocess.Popen([*command, "scheduler", "--listen", address])
    worker = subprocess.Popen(
        [*command, "worker", demo, "--scheduler", address, "--num-speculative-tokens", "4", *blocks]
    )
    try:
        drafter = subprocess.run(
            [*command, "draft-worker", "--speculative-model", other, "--scheduler", address],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert drafter.returncode == 1
        assert "a vocabulary of 384 tokens" in drafter.stderr
    finally:
        for process in (worker, scheduler):
            process.terminate()
            process.wait(PATIENCE_SECONDS)
