"""Server-sent events of chat and completions: the chunks of a stream.

A stream repeats the same JSON around every piece of text. That JSON is serialized once per choice,
so a chunk costs the escaping of its text and one concatenation.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from json.encoder import encode_basestring as quote  # JSON string, non-ASCII characters as they are

from pydantic import BaseModel

from taco_gateway.api_errors import ApiError, error_bytes
from taco_gateway.http.parsed_chunks import json_deltas
from taco_gateway.protocol.logprob_text import chat_json, completion_json, has_many
from taco_gateway.protocol.logprobs import LogprobFormatter
from taco_gateway.protocol.responses import Usage, finish_reason
from taco_gateway.text.output.echoed_prompt import EchoedPrompt
from taco_gateway.text.output.output_processor import TextUpdate
from taco_gateway.text.output.token_logprobs import TokenLogprob
from taco_gateway.text_updates import Updates
from taco_gateway.usage_and_latency import RequestStats

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_CLOSING_BEFORE_USAGE = ',"usage":null}\n\n'


def error_frame(error: ApiError) -> bytes:
    """The frame of an error after the stream has begun."""
    return b"data: %b\n\n" % error_bytes(error)


class StreamHead(BaseModel):
    """Fields that all chunks of a stream share."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamExtras:
    """Optional content of a stream.

    Attributes:
        include_usage: a last chunk with the usage.
        continuous_usage: the usage so far in every chunk.
        formatter: writes log probabilities; None: the client asked for none.
        prompt_token_ids: of each choice, written once per choice; each chunk also gets its token
            ids. None: the client asked for no token ids.
        gives_reasoning: chunks with reasoning are written.
        has_old_names: calls are written as `function_call`.
    """

    include_usage: bool = False
    continuous_usage: bool = False
    formatter: LogprobFormatter | None = None
    prompt_token_ids: Sequence[Sequence[int]] | None = None
    gives_reasoning: bool = True
    has_old_names: bool = False


class ChunkWriter:
    """Writes the chunks of one stream."""

    def __init__(self, head: StreamHead, extras: StreamExtras) -> None:
        self._opening = f"data: {head.model_dump_json()[:-1]}"
        self._include_usage = extras.include_usage
        self._continuous_usage = extras.continuous_usage
        # With usage, each chunk has a field for it, which is null until the last chunk.
        has_usage = extras.include_usage or extras.continuous_usage
        self._closing = _CLOSING_BEFORE_USAGE if has_usage else "}\n\n"
        self._formatter = extras.formatter
        self._prompt_token_ids = extras.prompt_token_ids
        # Chunks with text alone are written on a faster path.
        self._is_plain = extras.formatter is None and extras.prompt_token_ids is None

    async def frames(self, updates: Updates, stats: RequestStats) -> AsyncGenerator[bytes, None]:
        """Yields the frames of a stream as its updates come, and closes `updates`."""
        opening = self.opening()
        with stats:
            async with aclosing(updates):
                async for update in updates:
                    stats.add(update)
                    if has_many(update.logprobs or ()) or has_many(update.prompt_logprobs or ()):
                        frames = await asyncio.to_thread(self.update, update)
                    else:
                        frames = self.update(update)
                    if opening:
                        frames, opening = opening + frames, b""
                    if not frames:
                        continue
                    yield self._with_usage(frames, stats) if self._continuous_usage else frames
        yield self.end(stats.usage())

    def _with_usage(self, frames: bytes, stats: RequestStats) -> bytes:
        """Puts the usage so far into every frame."""
        # JSON strings have no line feeds, so these bytes are always the end of a frame.
        known = f',"usage":{stats.usage().model_dump_json()}}}\n\n'
        return frames.replace(_CLOSING_BEFORE_USAGE.encode(), known.encode())

    def opening(self) -> bytes:
        """The frames before the first update."""
        return b""

    def update(self, update: TextUpdate) -> bytes:
        """The frames for one update, without its usage."""
        raise NotImplementedError

    def end(self, usage: Usage) -> bytes:
        """The last frames of a successful stream."""
        if not self._include_usage:
            return DONE
        frame = f'{self._opening},"choices":[],"usage":{usage.model_dump_json()}}}\n\n'
        return frame.encode() + DONE

    def _token_ids(self, update: TextUpdate) -> str:
        """The token ids of a chunk as a JSON field; empty if the client asked for none."""
        if self._prompt_token_ids is None:
            return ""
        return f',"token_ids":{json.dumps(update.token_ids)}'


class ChatChunkWriter(ChunkWriter):
    """Chunks of chat: the first one of a choice has the role, the last one an empty delta.

    Args:
        echo: text of the last message, which begins each choice.
    """

    def __init__(
        self,
        head: StreamHead,
        extras: StreamExtras,
        *,
        role: str,
        num_choices: int,
        echo: str = "",
    ) -> None:
        super().__init__(head, extras)
        self._role = quote(role)
        self._echo = quote(echo) if echo else ""
        self._before = [
            f'{self._opening},"choices":[{{"index":{index},"delta":' for index in range(num_choices)
        ]
        self._after = f',"logprobs":null,"finish_reason":null}}]{self._closing}'
        self._after_text = "}" + self._after
        self._gives_reasoning = extras.gives_reasoning
        self._has_old_names = extras.has_old_names
        self._unwritten: dict[int, TextUpdate] = {}  # tokens of updates without a delta

    def opening(self) -> bytes:
        """The first chunk of each choice, with its role."""
        after = self._after
        if self._prompt_token_ids is not None:
            prompt = json.dumps(list(self._prompt_token_ids[0]))
            after = (
                ',"logprobs":null,"finish_reason":null}],'
                f'"prompt_token_ids":{prompt}{self._closing}'
            )
        deltas = [f'{{"role":{self._role},"content":""}}{after}']
        if self._echo:
            deltas.append(f'{{"content":{self._echo}{self._after_text}')
        return "".join(before + delta for before in self._before for delta in deltas).encode()

    def update(self, update: TextUpdate) -> bytes:
        before = self._before[update.index]
        if update.parsed is not None:
            frames = self._parsed(before, update)
        elif self._is_plain:
            frames = ""
            if update.text:
                frames = before + '{"content":' + quote(update.text) + self._after_text
        else:
            frames = self._with_extras(before, update)
        if update.finish_reason is not None:
            reason = finish_reason(update.finish_reason, self._has_old_names)
            frames += (
                f'{before}{{}},"logprobs":null,"finish_reason":{quote(reason)},'
                f'"stop_reason":{json.dumps(update.stop_reason)}}}]{self._closing}'
            )
        return frames.encode()

    def _parsed(self, before: str, update: TextUpdate) -> str:
        """Frames of an update with reasoning and calls; its first one has the extras."""
        assert update.parsed is not None
        deltas = json_deltas(
            update.parsed,
            gives_reasoning=self._gives_reasoning,
            has_old_names=self._has_old_names,
        )
        after = self._after
        if not self._is_plain:
            tokens = self._unwritten.pop(update.index, None)
            if tokens is None:
                tokens = TextUpdate(update.index)
            tokens.extend(update)
            if not deltas and update.finish_reason is None:
                self._unwritten[update.index] = tokens
                return ""
            after = self._after_extras(tokens)
            if not deltas and tokens.token_ids:
                deltas = ["{}"]  # the last tokens of the answer
        first, *others = [*deltas, ""]
        if not first:
            return ""
        return before + first + after + "".join(before + d + self._after for d in others if d)

    def _after_extras(self, tokens: TextUpdate) -> str:
        logprobs = "null"
        if self._formatter is not None:
            logprobs = chat_json(self._formatter, tokens.logprobs or ())
        ids = self._token_ids(tokens)
        return f',"logprobs":{logprobs},"finish_reason":null{ids}}}]{self._closing}'

    def _with_extras(self, before: str, update: TextUpdate) -> str:
        logprobs, has_entries = "null", False
        if self._formatter is not None:
            logprobs = chat_json(self._formatter, update.logprobs or ())
            has_entries = bool(update.logprobs)
        token_ids = self._token_ids(update)
        if not update.text and not has_entries and not (token_ids and update.token_ids):
            return ""
        return (
            f'{before}{{"content":{quote(update.text)}}},"logprobs":{logprobs},'
            f'"finish_reason":null{token_ids}}}]{self._closing}'
        )


class CompletionChunkWriter(ChunkWriter):
    """Chunks of completions. With `echo` a choice begins with its prompt.

    Args:
        echo: the prompt of each choice; empty without `echo`.
    """

    def __init__(
        self,
        head: StreamHead,
        extras: StreamExtras,
        *,
        num_choices: int,
        sequences_per_prompt: int,
        echo: Sequence[EchoedPrompt] = (),
    ) -> None:
        super().__init__(head, extras)
        self._before = [
            f'{self._opening},"choices":[{{"index":{index},"text":' for index in range(num_choices)
        ]
        self._after = f',"logprobs":null,"finish_reason":null}}]{self._closing}'
        self._n = sequences_per_prompt
        self._echo = echo
        self._prompt_rows: dict[int, Sequence[TokenLogprob | None]] = {}
        self._held: dict[int, list[TextUpdate]] = {}
        self._unopened = set(range(num_choices)) if echo else set[int]()
        self._without_prompt_ids = set(range(num_choices))

    def update(self, update: TextUpdate) -> bytes:
        if self._unopened:
            return self._update_with_echo(update)
        return self._frame(update).encode()

    def _frame(self, update: TextUpdate) -> str:
        before = self._before[update.index]
        if self._is_plain and update.finish_reason is None:
            return before + quote(update.text) + self._after if update.text else ""
        logprobs, has_entries = "null", False
        if self._formatter is not None:
            offset = len(self._echo[update.index].text) if self._echo else 0
            columns = self._formatter.completion(update.logprobs or (), offset=offset)
            logprobs, has_entries = completion_json(columns), bool(columns.tokens)
        token_ids = self._token_ids(update)
        is_empty = not update.text and not has_entries and not (token_ids and update.token_ids)
        if is_empty and update.finish_reason is None:
            return ""
        return (
            f'{before}{quote(update.text)},"logprobs":{logprobs},'
            f'"finish_reason":{json.dumps(update.finish_reason)},'
            f'"stop_reason":{json.dumps(update.stop_reason)}{token_ids}'
            f"{self._prompt_ids_once(update.index)}}}]{self._closing}"
        )

    def _prompt_ids_once(self, index: int) -> str:
        if self._prompt_token_ids is None or index not in self._without_prompt_ids:
            return ""
        self._without_prompt_ids.discard(index)
        return f',"prompt_token_ids":{json.dumps(list(self._prompt_token_ids[index]))}'

    def _update_with_echo(self, update: TextUpdate) -> bytes:
        """Holds choices until their prompt's log probabilities come with its first sequence."""
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
        logprobs = "null"
        if self._formatter is not None:
            columns = self._formatter.echoed_prompt(echoed, self._prompt_rows[index // self._n])
            logprobs = completion_json(columns)
        return (
            f'{self._before[index]}{quote(echoed.text)},"logprobs":{logprobs},'
            f'"finish_reason":null{self._prompt_ids_once(index)}}}]{self._closing}'
        )
