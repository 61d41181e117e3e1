"""`taco_llm chat` and `taco_llm complete` against servers with prepared answers."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from support.canned_server import STREAM_HEAD, CannedServer, events, piece, refusal
from support.patience import PATIENCE_SECONDS, wait_until
from taco_llm.cli.main import main
from taco_llm.client import prompt_loop

pytestmark = pytest.mark.process


def delta(text: str | None, finish_reason: str | None = None) -> dict[str, Any]:
    """A chunk of a streamed chat answer."""
    content = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish_reason}]}


HELLO = STREAM_HEAD + events(delta(""), delta("Hel"), delta("lo"), delta(None, "stop"), "[DONE]")


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes its argument the standard input."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TACO_API_KEY", "VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_a_message_is_answered_once(capsys: pytest.CaptureFixture[str]) -> None:
    with CannedServer(HELLO) as server:
        argv = ["chat", "Hi", "--url", server.url, "--temperature", "0", "--max-tokens", "9"]
        assert main([*argv, "--system-prompt", "Be brief."]) == 0
    assert capsys.readouterr() == ("Hello\n", "")
    assert server.requests == [
        {
            "model": "m",
            "temperature": 0,
            "max_tokens": 9,
            "stream": True,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
            ],
        }
    ]
    assert "Authorization" not in server.headers[0]


def test_a_conversation_is_kept_until_it_is_cleared(
    capsys: pytest.CaptureFixture[str], typed: Any
) -> None:
    typed("one\n\n  two \n/clear\nthree\n/exit\nfour\n")
    with CannedServer(HELLO) as server:
        assert main(["chat", "--url", f"{server.url}/v1", "--model-name", "other"]) == 0
    assert capsys.readouterr().out == "Hello\n" * 3
    contents = [[m["content"] for m in body["messages"]] for body in server.requests]
    assert contents == [["one"], ["one", "Hello", "two"], ["three"]]
    assert {body["model"] for body in server.requests} == {"other"}


def test_half_a_surrogate_pair_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    with CannedServer(
        STREAM_HEAD + events(delta("a\ud800b"), delta(None, "stop"), "[DONE]")
    ) as server:
        assert main(["chat", "Hi", "--url", server.url]) == 0
    assert capsys.readouterr().out == "a?b\n"


def test_completions_are_independent(capsys: pytest.CaptureFixture[str], typed: Any) -> None:
    typed("a\nb\n")
    answer = STREAM_HEAD + events(piece("x"), piece("y", "length"), "[DONE]")
    with CannedServer(answer) as server:
        assert main(["complete", "--url", server.url]) == 0
        assert main(["complete", "c", "--url", server.url]) == 0
    out, err = capsys.readouterr()
    assert out == "xy\n" * 3
    assert err == "[the answer ends here: the length limit]\n" * 3
    assert [body["prompt"] for body in server.requests] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        (["--api-key", "k1"], {"TACO_API_KEY": "k2"}, "Bearer k1"),
        ([], {"TACO_API_KEY": "k2,k3", "VLLM_API_KEY": "k4"}, "Bearer k2"),
        ([], {"VLLM_API_KEY": "k4", "OPENAI_API_KEY": "k5"}, "Bearer k4"),
        ([], {"OPENAI_API_KEY": "k5"}, "Bearer k5"),
    ],
)
def test_which_key_is_sent(
    flags: list[str], environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with CannedServer(HELLO) as server:
        assert main(["chat", "Hi", "--url", server.url, *flags]) == 0
    assert server.headers[0]["Authorization"] == expected


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            refusal(401, b'{"error": {"message": "Invalid\\nAPI key."}}'),
            "/v1/chat/completions answered 401: Invalid API key; give a key with --api-key or "
            "TACO_API_KEY",
        ),
        (refusal(502, b"<html>"), "answered 502: No"),
        (STREAM_HEAD + events(delta("He"), {"error": {"message": "It broke."}}), "It broke."),
        (STREAM_HEAD + events(delta("He")), "closed the connection before"),
        (STREAM_HEAD + b"data: {\n\n", "does not answer in the format of OpenAI"),
        (STREAM_HEAD + b"data: []\n\n", "does not answer in the format of OpenAI"),
        (
            STREAM_HEAD + events({"choices": [{"delta": 5}]}),
            "does not answer in the format of OpenAI",
        ),
        (STREAM_HEAD + events(delta(7)), "does not answer in the format of OpenAI"),  # type: ignore[arg-type]
        (STREAM_HEAD + events({"choices": [5]}), "does not answer in the format of OpenAI"),
        (
            STREAM_HEAD + b"data: " + b"[" * 100_000 + b"\n",
            "does not answer in the format of OpenAI",
        ),
        (refusal(400, b"[" * 100_000), "answered 400"),
        (b"", "the connection to"),
    ],
)
def test_an_error_is_one_line_and_leaves_the_conversation_unchanged(
    answer: bytes, message: str, capsys: pytest.CaptureFixture[str], typed: Any
) -> None:
    with CannedServer(answer) as server:
        assert main(["chat", "Hi", "--url", server.url]) == 1
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert message in err
        typed("one\ntwo\n")
        assert main(["chat", "--url", server.url]) == 1
    assert [len(body["messages"]) for body in server.requests] == [1, 1, 1]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (b'{"data": []}', "/v1/models lists no model"),
        (b"<html>", "/v1/models lists no model"),
        (b"[" * 100_000, "/v1/models lists no model"),
    ],
)
def test_a_server_without_a_model(
    models: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with CannedServer(HELLO, models) as server:
        assert main(["chat", "Hi", "--url", server.url]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--url", "ftp://x"], "'ftp://x' is not an http or https URL"),
        (["--url", "http://x:many"], "is not a URL"),
        (["--url", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1/v1: Connection refused"),
        (["--max-tokens", "0"], "--max-tokens must be an integer of at least 1"),
        (["--temperature", "-1"], "temperature must be at least 0"),
    ],
)
def test_a_wrong_command_is_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "Hi", *argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith("taco_llm chat: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    version = capsys.readouterr().out
    assert main(["version"]) == 0
    assert capsys.readouterr().out == version


class Terminal:
    """A command at a terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process = process
        self._master = master
        self._seen = b""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> bytes:
        """What was shown up to and including `text`."""
        while text.encode() not in self._seen:
            ready, _, _ = select.select([self._master], [], [], PATIENCE_SECONDS)
            assert ready, self._seen
            self._seen += os.read(self._master, 4096)
        shown, _, self._seen = self._seen.partition(text.encode())
        return shown + text.encode()


@contextmanager
def terminal(*argv: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "taco_llm.cli.main", *argv],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_ctrl_c_ends_an_answer_and_not_the_chat() -> None:
    endless = STREAM_HEAD + events(delta("Once \x1b[2Jupon"))
    with (
        CannedServer(endless, stays_open=True) as server,
        terminal("chat", "--url", server.url) as t,
    ):
        t.wait_for("Asking m.")
        t.wait_for("> ")
        t.type("Tell me a story\n")
        assert b"\x1b[2J" not in t.wait_for("upon")
        t.process.send_signal(signal.SIGINT)
        t.wait_for("[the answer ends here: interrupted]")
        t.wait_for("> ")
        t.type("And then?\n")
        t.wait_for("upon")
        t.process.send_signal(signal.SIGINT)
        t.wait_for("> ")
        t.type("\x04")
        assert t.process.wait(PATIENCE_SECONDS) == 0
    contents = [message["content"] for message in server.requests[-1]["messages"]]
    assert contents == ["Tell me a story", "Once \x1b[2Jupon", "And then?"]


def test_ctrl_c_at_the_prompt_shows_how_to_leave(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[Any] = [KeyboardInterrupt, "Hi", EOFError]

    def type_next(prompt: str) -> str:
        assert prompt == "> "
        key = keys.pop(0)
        if isinstance(key, str):
            return key
        raise key

    monkeypatch.setattr("builtins.input", type_next)
    monkeypatch.setattr(sys, "stdin", Mock(isatty=lambda: True))
    with CannedServer(HELLO) as server:
        assert main(["chat", "--url", server.url]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n\n"
    assert err.count("Ctrl-D or /exit ends") == 2


def test_ctrl_c_ends_a_single_question() -> None:
    with CannedServer(None) as server:
        command = [sys.executable, "-m", "taco_llm.cli.main", "chat", "Hi", "--url", server.url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            wait_until(lambda: bool(server.requests), "the question")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 130
    assert (out, err) == (b"\n", b"[the answer ends here: interrupted]\n")


def test_only_control_characters_are_left_out() -> None:
    text = "10\u00a0000\u202f€ 中\u3000文 👨\u200d👩 ین\u200cن\ta\n"
    assert prompt_loop._printable(text) == text
    assert prompt_loop._printable("a\x1b[2J\u202eb\u2028\x9bc\r") == "a[2Jbc"
