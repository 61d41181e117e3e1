"""An engine that answers by a script: for tests of everything above `EngineClient`."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from taco_gateway.engine.engine_client import EngineError, EngineStats, SequenceUpdate
from taco_proto.requests import FinishReason, GenerateRequest, ModelInfo


class Hold:
    """A step of a script that waits, until `release` or until the request is given up."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reached = asyncio.Event()

    def release(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._event.wait()


Step = SequenceUpdate | EngineError | Hold
Script = Callable[[GenerateRequest], Iterable[Step]]

MODEL_INFO = ModelInfo(
    model="scripted",
    max_model_len=512,
    vocab_size=1000,
    eos_token_ids=(1,),
    block_size=16,
    num_blocks=64,
    max_logprobs=20,
)


def prompt_of(request: GenerateRequest) -> list[int]:
    ids: list[int] = np.frombuffer(request.token_ids, dtype="<i4").tolist()
    return ids


def replay(token_ids: list[int], finish: FinishReason = FinishReason.LENGTH) -> Script:
    """Every sequence gets `token_ids`, one at a time, cut at `max_tokens`; then it ends."""

    def script(request: GenerateRequest) -> Iterator[Step]:
        assert request.sampling.max_tokens is not None
        tokens = token_ids[: request.sampling.max_tokens]
        last = len(tokens) - 1
        for position, token_id in enumerate(tokens):
            reason = finish if position == last else FinishReason.RUNNING
            for index in range(request.sampling.num_outputs):
                yield SequenceUpdate(index, [token_id], finish_reason=reason)

    return script


class ScriptedStream:
    def __init__(self, request: GenerateRequest, steps: Iterable[Step]) -> None:
        self.request = request
        self.cancelled: set[int] = set()
        self.closed = asyncio.Event()
        self.ended = False
        self._steps = iter(steps)

    def __aiter__(self) -> "ScriptedStream":
        return self

    async def __anext__(self) -> SequenceUpdate:
        await asyncio.sleep(0)
        for step in self._steps:
            match step:
                case Hold():
                    await step.wait()
                case EngineError():
                    self.ended = True
                    raise step
                case SequenceUpdate() if step.index not in self.cancelled:
                    return step
        self.ended = True
        raise StopAsyncIteration

    def read_in_bulk(self) -> None:
        """The script's updates come as they are."""

    def cancel(self, index: int) -> None:
        self.cancelled.add(index)

    def close(self) -> None:
        self.closed.set()

    @property
    def given_up(self) -> bool:
        """Closed while it still ran."""
        return self.closed.is_set() and not self.ended


class ScriptedEngine:
    """An `EngineClient`. Keeps every stream that it gave, so that tests can see what was asked."""

    def __init__(self, script: Script, info: ModelInfo | None = MODEL_INFO) -> None:
        self.script = script
        self.info = info
        self.streams: list[ScriptedStream] = []
        self.prometheus = b""

    @property
    def requests(self) -> list[GenerateRequest]:
        return [stream.request for stream in self.streams]

    def model_info(self) -> ModelInfo | None:
        return self.info

    def generate(self, request: GenerateRequest) -> ScriptedStream:
        stream = ScriptedStream(request, self.script(request))
        self.streams.append(stream)
        return stream

    async def stats(self) -> EngineStats:
        return EngineStats(
            num_running=0,
            num_waiting=0,
            kv_cache_usage=0.0,
            num_free_blocks=64,
            num_blocks=64,
            num_workers=1,
            prometheus=self.prometheus,
        )

    async def close(self) -> None:
        pass
