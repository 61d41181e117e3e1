"""Speculative decoding of a random-weight Llama-3-8B.

First checks that drafts change no token, and what verifying them costs. Then compares decoding
with drafts and without: `replay` repeats requests that the lookahead cache has seen; `draft`
runs a draft model on the host's cores through a draft worker. The target's answers are known
(see `successors`) and are checked. They repeat only for repeated requests, and the draft model
agrees with the target on four tokens of five. So the figures show the gain at that acceptance
rate; they do not predict the rate of real models. `drafting` is the draft model's own time, and
the acceptance at which it pays.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from bench.gpu.harness.context import Context
from bench.gpu.inputs.drafted_tokens import compare_drafted_tokens
from bench.gpu.inputs.llama import LLAMA_3_8B, TINY, model_folder
from bench.gpu.inputs.mix import random_prompts
from bench.gpu.inputs.successors import DRAFT, TINY_DRAFT, Successors, as_dummy_weights, write_draft
from bench.gpu.parts.verification import measure_verification
from support.drafting import Ask, draft_request
from taco_kernels.library import KernelLibraryError, library_keeping_gil
from taco_llm.llm import LLM
from taco_proto.sampling_params import SamplingParams
from taco_scheduler.server.drafter_links import DraftExecutor

_PLAIN = "plain"
_AGREEMENT = 0.8
_NUM_DRAFTS = 8
# The first runs capture CUDA graphs, fill the cache, and give the controller its timings.
_WARM_UPS, _RUNS = 2, 3
_ENGINE_SECONDS = 12.0
# Number of requests to the draft model; sequence ids that no scheduler uses.
_DRAFTINGS = 9
_FIRST_SEQUENCE = 2**40


@dataclass(frozen=True, slots=True)
class Sizes:
    """Attributes:
    prompt_len, num_tokens: of each sequence.
    """

    target: dict[str, Any]
    draft: dict[str, Any]
    batches: tuple[int, ...]
    prompt_len: int
    num_tokens: int
    num_blocks: int


_REAL = Sizes(LLAMA_3_8B, DRAFT, (1, 8, 32), 256, 96, num_blocks=2400)
_TRIAL = Sizes(TINY, TINY_DRAFT, (2,), 24, 12, num_blocks=64)


def measure(context: Context) -> None:
    try:
        library_keeping_gil()
    except KernelLibraryError as error:  # it selects and makes drafts
        context.report.leave_out("all of it", error)
        return
    compare_drafted_tokens(context)
    measure_verification(context)
    sizes = _REAL if context.is_real else _TRIAL
    successors = Successors.random(sizes.target["vocab_size"])
    with model_folder(sizes.target) as folder, as_dummy_weights(successors):
        bench = DecodeBench(context, sizes, successors, folder)
        for name, arguments in chain([(_PLAIN, {})], _drafters(sizes, successors)):
            if not context.report.has_time(name, _ENGINE_SECONDS if context.is_real else 0.0):
                continue
            try:
                with bench.engine(arguments) as llm:
                    for batch in sizes.batches:
                        bench.measure(name, llm, batch)
                        if llm._engine._drafter is not None:
                            bench.measure_drafting(llm._engine._drafter, batch)
            except Exception as error:  # for example no compiler; other drafters continue
                context.report.leave_out(name, error)


def _drafters(sizes: Sizes, successors: Successors) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields engine arguments by drafter; files that they need exist until the next one."""
    with tempfile.TemporaryDirectory() as empty:
        yield "replay", {"lookahead_cache_config_dir": empty}
    with tempfile.TemporaryDirectory() as folder:
        write_draft(Path(folder), sizes.draft, successors.wrong_for(1 - _AGREEMENT))
        # The engine needs a core, too.
        num_threads = max(1, len(os.sched_getaffinity(0)) - 2)
        yield (
            "draft",
            {
                "speculative_model": folder,
                "num_speculative_tokens": _NUM_DRAFTS,
                "num_threads": num_threads,
            },
        )


class DecodeBench:
    """Engines of one model, one after the other, with the same prompts."""

    def __init__(self, context: Context, sizes: Sizes, successors: Successors, folder: str) -> None:
        self._context = context
        self._sizes = sizes
        self._successors = successors
        self._folder = folder
        self._plain_rates: dict[int, float] = {}  # by batch

    @contextmanager
    def engine(self, arguments: dict[str, Any]) -> Iterator[LLM]:
        sizes = self._sizes
        with LLM(
            self._folder,
            load_format="dummy",
            device=self._context.device.type,
            skip_tokenizer_init=True,
            max_num_seqs=max(sizes.batches),
            max_model_len=2 * (sizes.prompt_len + sizes.num_tokens),
            num_gpu_blocks_override=sizes.num_blocks,
            **arguments,
        ) as llm:
            yield llm
        self._context.free_bytes()  # free memory for the next engine

    def measure(self, name: str, llm: LLM, batch: int) -> None:
        sizes = self._sizes
        prompts = random_prompts([sizes.prompt_len] * batch, sizes.target["vocab_size"], batch)
        wanted = [self._successors.answer(prompt, sizes.num_tokens) for prompt in prompts]
        for _ in range(_WARM_UPS):
            _generate(llm, prompts, sizes.num_tokens)
        before = _totals(llm)
        runs = [_generate(llm, prompts, sizes.num_tokens) for _ in range(_RUNS)]
        steps, drafts, accepted = (
            now - then for now, then in zip(_totals(llm), before, strict=True)
        )
        rate = batch * sizes.num_tokens / median(seconds for seconds, _ in runs)
        figures: dict[str, Any] = {
            "tok_per_s": round(rate, 1),
            "right": all(answers == wanted for _, answers in runs),
        }
        line = f"{rate:9,.0f} tok/s"
        if name == _PLAIN:
            self._plain_rates[batch] = rate
        elif batch in self._plain_rates:
            figures["speedup"] = round(rate / self._plain_rates[batch], 3)
            line += f", {figures['speedup']:.2f} times plain"
        if name != _PLAIN:
            figures["verified_a_step"] = round(drafts / max(1, steps), 2)
            figures["accepted_a_step"] = round(accepted / max(1, steps), 2)
        line += "" if figures["right"] else ", WRONG"
        self._context.report.add(f"{name}, batch {batch}", figures, line)

    def measure_drafting(self, drafter: DraftExecutor, batch: int) -> None:
        """Measures the draft model's time, independent of the controller, and how many tokens
        per step make drafting as fast as plain decoding.
        """
        prompt_len, vocab_size = self._sizes.prompt_len, self._sizes.target["vocab_size"]
        rows = [_FIRST_SEQUENCE + row for row in range(batch)]
        known, new = 0, random_prompts([prompt_len] * batch, vocab_size, batch)
        seconds: list[float] = []
        while len(seconds) < _DRAFTINGS:
            asks = [
                Ask(row, known, tokens, _NUM_DRAFTS) for row, tokens in zip(rows, new, strict=True)
            ]
            begun = time.perf_counter()
            reply = drafter.draft(draft_request(*asks))
            ended = time.perf_counter()
            known += len(new[0])
            new = [[] for _ in rows]
            if reply.num_drafts.sum() == batch * _NUM_DRAFTS:  # all prompts have been computed
                seconds.append(ended - begun)
                new = random_prompts([2] * batch, vocab_size, len(seconds))
        drafter.draft(draft_request(left=rows))
        draft_ms = 1e3 * median(seconds[1:])
        figures = {"draft_ms": round(draft_ms, 3), "drafts": _NUM_DRAFTS, "agreement": _AGREEMENT}
        verify = self._context.report.figures.get(f"verify {batch}x{1 + _NUM_DRAFTS}")
        if verify is not None and batch in self._plain_rates:
            plain_ms = 1e3 * batch / self._plain_rates[batch]
            figures["needed_tokens_a_step"] = round((draft_ms + verify["step_ms"]) / plain_ms, 2)
        line = f"{draft_ms:9.3f} ms for {_NUM_DRAFTS} drafts of each"
        self._context.report.add(f"drafting, batch {batch}", figures, line)


def _totals(llm: LLM) -> tuple[int, int, int]:
    """Returns rows that could have drafts, verified drafts, and accepted drafts."""
    counters = llm._engine._scheduler.engine.counters.speculation
    return counters.num_iterations, counters.draft_tokens, counters.accepted_tokens


def _generate(llm: LLM, prompts: Sequence[list[int]], length: int) -> tuple[float, list[list[int]]]:
    """Returns the seconds and the answers."""
    params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
    begun = time.perf_counter()
    outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
    seconds = time.perf_counter() - begun
    return seconds, [list(output.outputs[0].token_ids) for output in outputs]
