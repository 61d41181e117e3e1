"""The quick start: `taco_llm serve demo`, asked with the openai client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from recipe.questions import Knowledge, answer_about
from support.serving import Serving

WELL_KNOWN = ("os.path.join", "json.dumps", "len")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    directory: Path = tmp_path_factory.mktemp("demo")
    with Serving(directory, "demo") as serving:
        serving.wait_ready()
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none") as client:
            yield client


def ask(client: openai.OpenAI, *contents: str) -> str:
    """The streamed answer to a conversation whose turns alternate, beginning with the user's."""
    roles = ("user", "assistant")
    messages: Any = [
        {"role": roles[i % 2], "content": content} for i, content in enumerate(contents)
    ]
    stream = client.chat.completions.create(
        model="demo", messages=messages, temperature=0, stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" for chunk in stream])


@pytest.mark.parametrize("name", WELL_KNOWN)
def test_it_knows_the_standard_library(client: openai.OpenAI, name: str) -> None:
    documented = {known.name: known for known in Knowledge.load().objects}
    assert ask(client, f"What does {name} do?") == answer_about(documented[name])


def test_a_second_turn_follows_the_first(client: openai.OpenAI) -> None:
    question = "What does json.dumps do?"
    answer = ask(client, question)
    assert "import json" in ask(client, question, answer, "Give an example.")


def test_it_says_what_it_does_not_know(client: openai.OpenAI) -> None:
    assert "I only know Python's standard library" in ask(client, "Who won the football match?")
