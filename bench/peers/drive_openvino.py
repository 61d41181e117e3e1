"""Drives OpenVINO GenAI's continuous batching pipeline, step by step so that tokens can be
timed.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import openvino
import openvino_genai

from bench.peers import driver
from bench.peers.workloads import Request

# OpenVINO's default of 256 splits prompts into small steps.
MAX_BATCHED_TOKENS = 1024


class OpenVinoEngine:
    def __init__(self, settings: driver.Settings) -> None:
        self.version = f"openvino-genai {openvino_genai.__version__.split('-')[0]}"
        self._ids = itertools.count()
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = settings.kv_gib
        scheduler.max_num_seqs = settings.max_num_seqs
        scheduler.max_num_batched_tokens = MAX_BATCHED_TOKENS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = settings.prefix_cache
        properties = {"INFERENCE_NUM_THREADS": settings.threads, "NUM_STREAMS": 1}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings.model, scheduler, "CPU", properties | settings.options
        )

    def run(self, requests: list[Request]) -> list[driver.Times]:
        driver.reject_schemas(requests)
        driver.reject_adapters(requests)
        started = time.perf_counter()
        readers = [self._submit(request) for request in requests]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter() - started
            for reader in readers:
                reader.read(now)
        now = time.perf_counter() - started
        for reader in readers:
            reader.read(now)
        return [reader.times() for reader in readers]

    def _submit(self, request: Request) -> "_Reader":
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.num_output_tokens
        config.min_new_tokens = request.num_output_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = openvino.Tensor(np.array([request.prompt], dtype=np.int64))
        return _Reader(self._pipeline.add_request(next(self._ids), ids, config))


class _Reader:
    """Counts the tokens of one request."""

    def __init__(self, handle: "openvino_genai.GenerationHandle") -> None:
        self._handle = handle
        self._first = self._last = 0.0
        self._num_tokens = 0

    def read(self, now: float) -> None:
        while self._handle.can_read():
            for output in self._handle.read().values():
                if not self._num_tokens:
                    self._first = now
                self._last = now
                self._num_tokens += len(output.generated_ids)

    def times(self) -> driver.Times:
        return driver.Times(self._first, self._last, self._num_tokens)


@contextmanager
def start(settings: driver.Settings) -> Iterator[OpenVinoEngine]:
    yield OpenVinoEngine(settings)


if __name__ == "__main__":
    driver.main(start)
