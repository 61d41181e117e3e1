"""`taco_llm chat` and `taco_llm complete` with the demo model."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipe.questions import Knowledge, answer_about
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import Serving

KEY = "sesame-7"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory: Path = tmp_path_factory.mktemp("demo")
    with Serving(directory, "demo", "--api-key", KEY) as serving:
        yield serving.wait_ready()


def taco_llm(
    serving: Serving, command: str, *argv: str, typed: str = "", key: str = KEY
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "taco_llm.cli.main", command, *argv, "--url", serving.url],
        input=typed,
        env=os.environ | {"TACO_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def documented(name: str) -> str:
    (known,) = (known for known in Knowledge.load().objects if known.name == name)
    return answer_about(known)


def test_chat_answers_one_message(serving: Serving) -> None:
    done = taco_llm(serving, "chat", "What does len do?", "--temperature", "0")
    assert (done.returncode, done.stdout) == (0, documented("len") + "\n"), done.stderr
    wait_until(serving.is_idle, "an idle service")


def test_chat_keeps_a_conversation(serving: Serving) -> None:
    typed = "What does json.dumps do?\nGive an example.\n"
    done = taco_llm(serving, "chat", "--temperature", "0", typed=typed)
    assert done.returncode == 0, done.stderr
    answer, _, example = done.stdout.partition(documented("json.dumps"))
    assert answer == ""
    assert "import json" in example


def test_complete_continues_a_text(serving: Serving) -> None:
    done = taco_llm(serving, "complete", "import os\n\ndef list", "--max-tokens", "4")
    assert (done.returncode, done.stderr) == (0, "[the answer ends here: the length limit]\n")
    assert done.stdout.strip()


def test_a_wrong_key_is_one_line(serving: Serving) -> None:
    done = taco_llm(serving, "chat", "Hi", key="wrong")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "answered 401" in done.stderr
