"""Drives TACO in process: `AsyncLLMEngine`, the engine of `LLM`."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from bench.peers import driver
from bench.peers.checkpoint_size import BLOCK_SIZE
from bench.peers.workloads import Request
from taco_llm.args.engine_args import EngineArgs
from taco_llm.async_engine import AsyncLLMEngine
from taco_llm.lora_request import LoRARequest
from taco_proto.sampling_params import SamplingParams
from taco_proto.structured_outputs import StructuredOutputsParams


class TacoEngine:
    def __init__(self, settings: driver.Settings, runner: asyncio.Runner) -> None:
        self.version = f"taco-llm {metadata.version('taco-llm')}"
        self._runner = runner
        self._adapters = [LoRARequest(name) for name in settings.options.get("lora_modules", ())]
        self._engine = AsyncLLMEngine(engine_args(settings))
        if not _uses_kernels(self._engine):
            raise RuntimeError("TACO does not use its CPU kernels: run `make kernels`")

    def run(self, requests: list[Request]) -> list[driver.Times]:
        if not self._adapters:
            driver.reject_adapters(requests)
        return self._runner.run(self._run_all(requests))

    def close(self) -> None:
        self._runner.run(self._engine.shutdown())

    async def _run_all(self, requests: list[Request]) -> list[driver.Times]:
        # One stream is read token by token; a batch is awaited as a whole, as `LLM` does.
        run_one = self._watch if len(requests) == 1 else self._complete
        started = time.perf_counter()
        return await asyncio.gather(*(run_one(request, started) for request in requests))

    async def _watch(self, request: Request, started: float) -> driver.Times:
        times = []
        num_tokens = 0
        async for output in self._engine.generate(
            request.prompt, sampling_params(request), lora_request=self._adapter(request)
        ):
            num_tokens = len(output.outputs[0].token_ids)
            if num_tokens:
                times.append(time.perf_counter() - started)
        return driver.Times(times[0], times[-1], num_tokens)

    async def _complete(self, request: Request, started: float) -> driver.Times:
        output = await self._engine.complete(
            request.prompt, sampling_params(request), lora_request=self._adapter(request)
        )
        ended = time.perf_counter() - started
        return driver.Times(ended, ended, len(output.outputs[0].token_ids))

    def _adapter(self, request: Request) -> LoRARequest | None:
        return None if request.adapter is None else self._adapters[request.adapter]


def _uses_kernels(engine: AsyncLLMEngine) -> bool:
    # Imported late: it imports torch, which a start does beside other work.
    from taco_worker.backends.cpu.cpu_model import CpuModel

    return isinstance(engine._worker._runner._model, CpuModel)


def sampling_params(request: Request) -> SamplingParams:
    constraint = None
    if request.json_schema is not None:
        constraint = StructuredOutputsParams(json=request.json_schema, disable_any_whitespace=True)
    return SamplingParams(
        temperature=0.0,
        max_tokens=request.num_output_tokens,
        ignore_eos=True,
        detokenize=False,
        structured_outputs=constraint,
    )


def engine_args(settings: driver.Settings) -> EngineArgs:
    return EngineArgs(
        model=settings.model,
        num_threads=settings.threads,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=settings.prefix_cache,
        log_stats=False,
        **settings.options,
    )


@contextmanager
def start(settings: driver.Settings) -> Iterator[TacoEngine]:
    with asyncio.Runner() as runner:
        engine = TacoEngine(settings, runner)
        try:
            yield engine
        finally:
            engine.close()


if __name__ == "__main__":
    driver.main(start)
