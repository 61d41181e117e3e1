"""Llama-3-8B with random weights through `taco_llm.LLM`: scheduler and worker in one process.

Steady decode is the difference between two runs over cached prompts: with one output token and
with many. The mix is served all at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.gpu.harness.context import Context
from bench.gpu.harness.trace import traced
from bench.gpu.inputs.llama import LLAMA_3_8B, TINY, model_folder
from bench.gpu.inputs.mix import SHAREGPT_LIKE, TRIAL, Mix, random_prompts
from taco_llm.llm import LLM
from taco_proto.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Sizes:
    """Attributes:
    batches: numbers of sequences that decode together.
    prompt_len, num_steps: of each sequence; 1k tokens in the middle of its decoding.
    """

    batches: tuple[int, ...]
    prompt_len: int
    num_steps: int
    traced_steps: int
    mix: Mix


_REAL = Sizes((1, 128, 32, 256), 960, 128, 48, SHAREGPT_LIKE)
_TRIAL = Sizes((1, 2), 24, 4, 3, TRIAL)


def measure(context: Context) -> None:
    config, sizes = (LLAMA_3_8B, _REAL) if context.is_real else (TINY, _TRIAL)
    begun = time.perf_counter()
    with model_folder(config) as folder:
        llm = LLM(
            folder,
            load_format="dummy",
            device=context.device.type,
            skip_tokenizer_init=True,
            max_num_seqs=256 if context.is_real else 4,
            num_gpu_blocks_override=None if context.is_real else 64,
        )
    with llm:
        context.report.add("start", {"seconds": round(time.perf_counter() - begun, 2)})
        for name, seed in (("mix, the first", 1), ("mix", 0)):
            if context.report.has_time(name, 10.0):
                _measure_mix(context, name, llm, sizes.mix.requests(seed))
        for batch in sizes.batches:
            name = f"decode {batch}x{sizes.prompt_len + sizes.num_steps // 2}"
            if context.report.has_time(name, 8.0):
                _measure_decode(context, name, llm, batch, sizes)


def _measure_mix(
    context: Context, name: str, llm: LLM, requests: Sequence[tuple[list[int], int]]
) -> None:
    """Serves all requests at once. CUDA graphs are captured while the first one is served."""
    outputs = [count for _, count in requests]
    seconds = _generate(llm, [prompt for prompt, _ in requests], outputs)
    num_prompt_tokens = sum(len(prompt) for prompt, _ in requests)
    figures = {
        "requests": len(requests),
        "prompt_tokens": num_prompt_tokens,
        "output_tokens": sum(outputs),
        "seconds": round(seconds, 3),
        "output_tok_per_s": round(sum(outputs) / seconds),
        "all_tok_per_s": round((sum(outputs) + num_prompt_tokens) / seconds),
    }
    line = f"{seconds:9.2f} s  {figures['output_tok_per_s']:9,} output tok/s"
    context.report.add(name, figures, line)


def _measure_decode(context: Context, name: str, llm: LLM, batch: int, sizes: Sizes) -> None:
    prompts = random_prompts([sizes.prompt_len] * batch, sizes.mix.vocab_size, seed=batch)
    _generate(llm, prompts, [32] * batch)  # fills the prefix cache, captures CUDA graphs
    once = _generate(llm, prompts, [1] * batch)
    whole = _generate(llm, prompts, [1 + sizes.num_steps] * batch)
    itl = 1e3 * (whole - once) / sizes.num_steps
    with traced(context.device, trim=0.25) as trace:
        _generate(llm, prompts, [1 + sizes.traced_steps] * batch)
    figures = {
        "itl_ms": round(itl, 3),
        "tok_per_s": round(1e3 * batch / itl),
        "traced": trace.record(),
    }
    line = f"{itl:9.3f} ms {figures['tok_per_s']:9,} tok/s, idle {trace.idle_share:.1%}"
    context.report.add(name, figures, line)


def _generate(llm: LLM, prompts: Sequence[list[int]], lengths: Sequence[int]) -> float:
    """Returns the seconds; each answer has the requested length."""
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
        for length in lengths
    ]
    begun = time.perf_counter()
    outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
    seconds = time.perf_counter() - begun
    for output, wanted in zip(outputs, params, strict=True):
        got = len(output.outputs[0].token_ids)
        if got != wanted.max_tokens:
            raise RuntimeError(f"{got} tokens instead of {wanted.max_tokens}")
    return seconds
