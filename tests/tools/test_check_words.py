"""`make words` finds banned names and sentences, and nothing in good ones."""

from pathlib import Path

import pytest

from tools.check_words import WORDS, Words, check

words = Words.load(WORDS)


@pytest.mark.parametrize(
    "source",
    [
        "lobby = 1\n",
        "class QueueLobby: ...\n",
        "class HasPaid: ...\n",
        "def settle(has_tenure: bool) -> None: ...\n",
        "request._outbox = None\n",
        "from taco_scheduler.reception import Queue\n",
        "# the scheduler waits for so many seconds\n",
        'def wait():\n    """Whoever waits, waits here."""\n',
        'raise ValueError("nobody serves this model")\n',
        'raise ValueError(f"{name} goes on without {other}")\n',
    ],
)
def test_a_banned_word_of_python_is_found(source: str) -> None:
    assert len(check("a.py", source, words)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "outstanding = newsletter = 1\n",
        'KEY = "lobby"\n',
        "# the queue is so long that requests time out\n",
        'def stop() -> None:\n    """Stops the server."""\n',
    ],
)
def test_good_python_passes(source: str) -> None:
    assert check("a.py", source, words) == []


@pytest.mark.parametrize("path", ["a.h", "a.cpp", "a.proto"])
def test_comments_of_other_languages_are_read(path: str) -> None:
    found = check(path, "int outbox;\nint a;  // what it has of its own\n", words)
    assert [(finding.line, finding.text) for finding in found] == [(2, "of its own")]


def test_markdown_lines_are_limited_where_they_can_be_wrapped() -> None:
    long = "word " * 30
    text = f"{long}\n| {long} |\n```\n{long}\n```\nhttps://{'a' * 200}\n"
    assert [finding.line for finding in check("a.md", text, words)] == [1]


def test_each_line_of_a_docstring_is_named_by_its_own_number() -> None:
    source = 'x = 1\n\n\ndef f():\n    """Waits.\n\n    Nobody else does.\n    """\n'
    assert [finding.line for finding in check("a.py", source, words)] == [7]


def test_paths_of_the_allow_list_are_skipped_and_exist() -> None:
    root = Path(__file__).parents[2]
    assert words.skips("CHANGELOG.md")
    assert not words.skips("README.md")
    for pattern in words.allowed:
        assert any(root.glob(pattern)), pattern
