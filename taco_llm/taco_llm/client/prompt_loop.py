"""The prompt loop of `taco_llm chat` and `complete`: reads prompts, prints streamed answers."""

import sys
import unicodedata
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Protocol

from taco_llm.client.client_args import ClientArgs
from taco_llm.client.streaming import Pieces, RequestFailedError, StreamingClient
from taco_proto.errors import ConfigurationError
from taco_proto.log_text import escape

FAILED = 1
_HELP = "Ctrl-C stops an answer, /clear starts a new conversation, Ctrl-D or /exit ends."

# Printed beside printable characters; the last two join and divide emoji and some scripts.
_KEPT = "\n\t\u200c\u200d"


class Session(Protocol):
    """The interface of a conversation or a series of completions."""

    def ask(self, prompt: str) -> bool:
        """Sends the prompt and prints the answer; returns False if it was interrupted.

        Raises:
            RequestFailedError: the request failed. The session has not changed.
        """

    def clear(self) -> None:
        """Clears all prompts and answers."""


class Conversation:
    """A chat. Each request contains the conversation so far."""

    def __init__(
        self, client: StreamingClient, model: str, args: ClientArgs, system_prompt: str | None
    ) -> None:
        self._client = client
        self._request = {"model": model, **args.options()}
        self._start: list[dict[str, str]] = []
        if system_prompt is not None:
            self._start.append({"role": "system", "content": system_prompt})
        self._messages = list(self._start)

    def ask(self, prompt: str) -> bool:
        """See `Session`. The conversation keeps the written part of an interrupted answer."""
        messages = [*self._messages, {"role": "user", "content": prompt}]
        body = {**self._request, "messages": messages}
        answer, is_whole = print_answer(
            self._client.stream(
                "/chat/completions", body, lambda choice: choice["delta"].get("content")
            )
        )
        self._messages = [*messages, {"role": "assistant", "content": answer}]
        return is_whole

    def clear(self) -> None:
        self._messages = list(self._start)


class Completions:
    """Completions. Each text is independent."""

    def __init__(self, client: StreamingClient, model: str, args: ClientArgs) -> None:
        self._client = client
        self._request = {"model": model, **args.options()}

    def ask(self, prompt: str) -> bool:
        body = {**self._request, "prompt": prompt}
        pieces = self._client.stream("/completions", body, lambda choice: choice["text"])
        return print_answer(pieces)[1]

    def clear(self) -> None:
        """Does nothing, since completions are independent."""


def connect(args: ClientArgs) -> tuple[StreamingClient, str]:
    """Connects to the server; returns the client and the name of the model.

    Raises:
        ConfigurationError: the server cannot be reached or lists no model.
    """
    client = StreamingClient(args.url, args.key)
    try:
        return client, args.model_name or client.first_model()
    except RequestFailedError as error:
        raise ConfigurationError(str(error)) from None


def run_prompts(session: Session, model: str, prompt: str | None) -> int:
    """Sends `prompt`, or each line of standard input without one; returns the exit code.

    Raises:
        KeyboardInterrupt: the user interrupted, and standard input is not a terminal.
    """
    is_terminal = prompt is None and sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401, gives input() editing and a history
        print(f"Asking {escape(model)}. {_HELP}", file=sys.stderr)
    code = 0
    for line in _lines(is_terminal) if prompt is None else [prompt]:
        if line == "/exit":
            break
        if line == "/clear":
            session.clear()
            continue
        try:
            if line and not session.ask(line) and not is_terminal:
                raise KeyboardInterrupt
        except RequestFailedError as error:
            print(f"error: {escape(str(error))}", file=sys.stderr)
            code = 0 if is_terminal else FAILED
    return code


def print_answer(pieces: Pieces) -> tuple[str, bool]:
    """Prints the text of a stream as it arrives. Ctrl-C ends the stream.

    Returns:
        The text, and False if it was interrupted.
    """
    is_terminal = sys.stdout.isatty()
    answer, note = "", ""
    try:
        with closing(pieces):
            for text, finish_reason in pieces:
                answer += text
                print(_printable(text) if is_terminal else text, end="", flush=True)
                if finish_reason == "length":
                    note = "the length limit"
    except KeyboardInterrupt:
        note = "interrupted"
    finally:
        print(flush=True)
    if note:
        print(f"[the answer ends here: {note}]", file=sys.stderr)
    return answer, note != "interrupted"


def _printable(text: str) -> str:
    """`text` without control characters, which could manipulate the terminal."""
    return "".join(
        char
        for char in text
        if char in _KEPT or char.isprintable() or unicodedata.category(char) == "Zs"
    )


def _lines(is_terminal: bool) -> Iterator[str]:
    """The prompts from standard input, without surrounding spaces."""
    while True:
        try:
            line = input("> " if is_terminal else "")
        except EOFError:
            if is_terminal:
                print()
            return
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print(f"\n{_HELP}", file=sys.stderr)
            continue
        yield line.strip()
