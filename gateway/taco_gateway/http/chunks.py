"""Server-sent events of the two OpenAI surfaces.

A stream repeats the same JSON around every piece of text, so that is serialised once a choice, and
each chunk costs the escaping of its text and one concatenation.
"""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring as quote  # JSON string, non-ASCII characters as they are

from pydantic import BaseModel

from taco_gateway.errors import ApiError, error_bytes
from taco_gateway.protocol.logprobs import LogprobFormatter
from taco_gateway.protocol.responses import Usage
from taco_gateway.text.echoed_prompt import EchoedPrompt
from taco_gateway.text.text_engine import TextUpdate, TokenLogprob

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def error_frame(error: ApiError) -> bytes:
    """What a stream says when it fails after it has begun."""
    return b"data: %b\n\n" % error_bytes(error)


class StreamHead(BaseModel):
    """The fields that all chunks of a stream share."""

    id: str
    object: str
    created: int
    model: str


class ChunkWriter:
    """Writes the chunks of one stream.

    Args:
        include_usage: announce usage in every chunk (null) and give it in a last one.
        formatter: writes log probabilities; None where none were asked for.
    """

    def __init__(
        self, head: StreamHead, *, include_usage: bool, formatter: LogprobFormatter | None
    ) -> None:
        self._opening = f"data: {head.model_dump_json()[:-1]}"
        self._closing = ',"usage":null}\n\n' if include_usage else "}\n\n"
        self._include_usage = include_usage
        self._formatter = formatter

    def update(self, update: TextUpdate) -> bytes:
        """The frames for one update; empty where there is nothing to tell yet."""
        raise NotImplementedError

    def end(self, usage: Usage) -> bytes:
        """The last frames of a stream that went well."""
        if not self._include_usage:
            return DONE
        frame = f'{self._opening},"choices":[],"usage":{usage.model_dump_json()}}}\n\n'
        return frame.encode() + DONE


class ChatChunkWriter(ChunkWriter):
    """Chat: a chunk with the role opens each choice, one with an empty delta ends it."""

    def __init__(
        self,
        head: StreamHead,
        *,
        include_usage: bool,
        formatter: LogprobFormatter | None,
        role: str,
        num_choices: int,
    ) -> None:
        super().__init__(head, include_usage=include_usage, formatter=formatter)
        self._role = quote(role)
        self._before = [
            f'{self._opening},"choices":[{{"index":{index},"delta":' for index in range(num_choices)
        ]
        self._after = f',"logprobs":null,"finish_reason":null}}]{self._closing}'
        self._after_text = "}" + self._after

    def roles(self) -> bytes:
        """The chunks that open the choices."""
        delta = f'{{"role":{self._role},"content":""}}'
        return "".join(before + delta + self._after for before in self._before).encode()

    def update(self, update: TextUpdate) -> bytes:
        before = self._before[update.index]
        if self._formatter is None:
            frames = ""
            if update.text:
                frames = before + '{"content":' + quote(update.text) + self._after_text
        else:
            frames = self._with_logprobs(before, update, self._formatter)
        if update.finish_reason is not None:
            frames += (
                f'{before}{{}},"logprobs":null,"finish_reason":{quote(update.finish_reason)},'
                f'"stop_reason":{json.dumps(update.stop_reason)}}}]{self._closing}'
            )
        return frames.encode()

    def _with_logprobs(self, before: str, update: TextUpdate, formatter: LogprobFormatter) -> str:
        logprobs = formatter.chat(update.logprobs or ())
        if not update.text and not logprobs.content:
            return ""
        return (
            f'{before}{{"content":{quote(update.text)}}},"logprobs":{logprobs.model_dump_json()},'
            f'"finish_reason":null}}]{self._closing}'
        )


class CompletionChunkWriter(ChunkWriter):
    """Completions. With `echo` a choice opens with its prompt.

    Args:
        echo: a prompt for each choice; empty without `echo`.
    """

    def __init__(
        self,
        head: StreamHead,
        *,
        include_usage: bool,
        formatter: LogprobFormatter | None,
        num_choices: int,
        sequences_per_prompt: int,
        echo: Sequence[EchoedPrompt] = (),
    ) -> None:
        super().__init__(head, include_usage=include_usage, formatter=formatter)
        self._before = [
            f'{self._opening},"choices":[{{"index":{index},"text":' for index in range(num_choices)
        ]
        self._after = f',"logprobs":null,"finish_reason":null}}]{self._closing}'
        self._n = sequences_per_prompt
        self._echo = echo
        self._prompt_rows: dict[int, Sequence[TokenLogprob | None]] = {}
        self._held: dict[int, list[TextUpdate]] = {}
        self._unopened = set(range(num_choices)) if echo else set[int]()

    def update(self, update: TextUpdate) -> bytes:
        if self._unopened:
            return self._update_with_echo(update)
        return self._frame(update).encode()

    def _frame(self, update: TextUpdate) -> str:
        before = self._before[update.index]
        if self._formatter is None and update.finish_reason is None:
            return before + quote(update.text) + self._after if update.text else ""
        logprobs = "null"
        if self._formatter is not None:
            offset = len(self._echo[update.index].text) if self._echo else 0
            columns = self._formatter.completion(update.logprobs or (), offset=offset)
            if not update.text and not columns.tokens and update.finish_reason is None:
                return ""
            logprobs = columns.model_dump_json()
        return (
            f'{before}{quote(update.text)},"logprobs":{logprobs},'
            f'"finish_reason":{json.dumps(update.finish_reason)},'
            f'"stop_reason":{json.dumps(update.stop_reason)}}}]{self._closing}'
        )

    def _update_with_echo(self, update: TextUpdate) -> bytes:
        """Choices wait for their prompt's log probabilities, which come with its first sequence."""
        prompt = update.index // self._n
        if update.prompt_logprobs is not None:
            self._prompt_rows[prompt] = update.prompt_logprobs
        self._held.setdefault(update.index, []).append(update)
        if self._formatter is not None and prompt not in self._prompt_rows:
            return b""
        siblings = range(prompt * self._n, (prompt + 1) * self._n)
        return "".join(self._release(index) for index in siblings if index in self._held).encode()

    def _release(self, index: int) -> str:
        opening = ""
        if index in self._unopened:
            self._unopened.discard(index)
            opening = self._opening_frame(index)
        return opening + "".join(self._frame(update) for update in self._held.pop(index))

    def _opening_frame(self, index: int) -> str:
        echoed = self._echo[index]
        if self._formatter is None:
            return self._before[index] + quote(echoed.text) + self._after
        rows = self._prompt_rows[index // self._n]
        columns = self._formatter.echoed_prompt(echoed, rows)
        return (
            f'{self._before[index]}{quote(echoed.text)},"logprobs":{columns.model_dump_json()},'
            f'"finish_reason":null}}]{self._closing}'
        )
