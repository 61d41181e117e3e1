"""Text work of the gateway per streamed token, on one core.

Measures from an `OutputBatch` as bytes to `TextUpdate`s in the tasks that stream them; 64 sequences
get one token per step. The gateway's goal, HTTP and gRPC included, is 8,000 tokens per second,
which is 125 µs per token.
"""

import argparse
import asyncio
import gc
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.record import save
from taco_gateway.engine.engine_client import EngineStats
from taco_gateway.engine.request_table import RequestTable
from taco_gateway.engine.token_stream import TokenStream
from taco_gateway.text.output.output_processor import TextUpdate
from taco_gateway.text.text_engine import TextEngine
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer
from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import logprobs_to_pb
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest, ModelInfo
from taco_proto.sampling_params import SamplingParams

NUM_STREAMS = 64
NUM_STEPS = 300
NUM_LOGPROBS = 5
CORPUS = "Serving a model means that many requests share the same forward pass, café 🦊 日本語.\n"
CASES = {
    "plain": SamplingParams(max_tokens=NUM_STEPS),
    "4 stop strings": SamplingParams(
        max_tokens=NUM_STEPS, stop=["\n\nHuman:", "</answer>", "Observation:", "###"]
    ),
    "5 logprobs": SamplingParams(max_tokens=NUM_STEPS, logprobs=NUM_LOGPROBS),
}


class Replay:
    """An engine whose outputs this script makes; no gRPC is involved."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self.requests = RequestTable(self)

    def model_info(self) -> ModelInfo:
        return self._info

    def generate(self, request: GenerateRequest) -> TokenStream:
        return self.requests.generate(request)

    def submit(self, request: GenerateRequest) -> None:
        pass

    def cancel(self, handle: int, index: int | None = None) -> None:
        pass

    async def stats(self) -> EngineStats:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def make_tokenizer() -> FastTokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([CORPUS], trainer)
    return FastTokenizer(backend)


def make_messages(params: SamplingParams, handles: list[int], vocab: list[int]) -> Iterator[bytes]:
    draw = random.Random(0)
    for step in range(NUM_STEPS):
        token_ids = draw.choices(vocab, k=len(handles))
        reason = FinishReason.LENGTH if step == NUM_STEPS - 1 else FinishReason.RUNNING
        batch = pb.OutputBatch(
            handles=handles,
            token_ids=token_ids,
            finish_reasons=[reason] * len(handles) if reason else (),
        )
        if params.logprobs is not None:
            columns = LogprobColumns()
            for token_id in token_ids:
                others = draw.choices(vocab, k=params.logprobs)
                count = 1 + len(others)
                columns.append_row([token_id, *others], [-1.0] * count, [1] * count)
            batch.logprobs.CopyFrom(logprobs_to_pb(columns))
        yield pb.SchedulerMessage(outputs=batch).SerializeToString()


async def measure(tokenizer: FastTokenizer, params: SamplingParams) -> float:
    """Returns the median microseconds per token over the steps."""
    info = ModelInfo(
        model="none",
        max_model_len=4096,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=(),
        block_size=16,
        num_blocks=1,
        max_logprobs=20,
    )
    client = Replay(info)
    engine = TextEngine(client, tokenizer)
    prompt = tokenizer.encode("Serving a model")
    num_read = 0

    async def read(updates: AsyncIterator[TextUpdate]) -> None:
        nonlocal num_read
        async for update in updates:
            num_read += len(update.token_ids)

    streams = [
        engine.generate(prompt, GenerateRequest(request_id=str(i), sampling=params))
        for i in range(NUM_STREAMS)
    ]
    readers = [asyncio.create_task(read(updates)) for updates in streams]
    await asyncio.sleep(0)
    handles = [stream.request.handle for stream in client.requests]
    vocab = tokenizer.encode(CORPUS)
    times = []
    for data in make_messages(params, handles, vocab):
        expected = num_read + NUM_STREAMS
        start = time.perf_counter_ns()
        message = pb.SchedulerMessage.FromString(data)
        client.requests.dispatch(message.outputs)
        while num_read < expected:  # noqa: ASYNC110 (only yields to the readers)
            await asyncio.sleep(0)
        times.append((time.perf_counter_ns() - start) / NUM_STREAMS / 1e3)
    for reader, updates in zip(readers, streams, strict=True):
        await reader
        async with aclosing(updates):
            pass
    engine.close()
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    tokenizer = make_tokenizer()
    gc.disable()
    figures = {}
    for name, params in CASES.items():
        figures[f"{name}, µs per token"] = round(asyncio.run(measure(tokenizer, params)), 2)
        print(f"{name:>16}: {figures[f'{name}, µs per token']:6.2f} µs per token")
    if arguments.save:
        print(save("text_hot_path", figures))


if __name__ == "__main__":
    main()
