"""The same model in transformers: continuous batching, and a compiled loop with a static cache."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, StaticCache
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from bench.gpu.harness.context import Context
from bench.gpu.inputs.llama import LLAMA_3_8B, TINY
from bench.gpu.inputs.mix import SHAREGPT_LIKE, TRIAL, Mix

# Prompt tokens, and decode steps after it.
_REAL, _TRIAL = (1024, 64), (24, 3)
_SMALL_CACHE = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=64)
# Seconds to compile the model for each batch size.
_COMPILE_SECONDS = 45.0
_MIX_SECONDS = 25.0


def measure(context: Context) -> None:
    report = context.report
    begun = time.perf_counter()
    model = _make_model(context)
    report.add("start", {"seconds": round(time.perf_counter() - begun, 2)})
    if report.has_time("continuous batching", _MIX_SECONDS if context.is_real else 0):
        try:
            _measure_mix(context, model, SHAREGPT_LIKE if context.is_real else TRIAL)
        except Exception as error:  # an error of the library does not stop the run
            report.leave_out("continuous batching", error)
    prompt_len, steps = _REAL if context.is_real else _TRIAL
    for batch in (1, 128, 32) if context.is_real else (2,):
        name = f"static cache, decode {batch}x{prompt_len}"
        if report.has_time(name, _COMPILE_SECONDS if context.is_real else 0):
            try:
                itl = _loop_ms(context, model, batch, prompt_len, steps)
            except Exception as error:
                report.leave_out(name, error)
                continue
            figures = {"itl_ms": round(itl, 3), "tok_per_s": round(1e3 * batch / itl)}
            report.add(name, figures, f"{itl:9.3f} ms {figures['tok_per_s']:9,} tok/s")


def _make_model(context: Context) -> Any:
    """Makes random weights on the device."""
    config = AutoConfig.for_model(**(LLAMA_3_8B if context.is_real else TINY))
    with torch.device(context.device):
        model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    return model.eval()


def _measure_mix(context: Context, model: Any, mix: Mix) -> None:
    """Runs all requests at once, each to its own length."""
    requests = mix.requests()
    config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    # The library's choice on a GPU; on a CPU it would take all memory.
    options = {} if context.is_real else {"continuous_batching_config": _SMALL_CACHE}
    with model.continuous_batching_context_manager(config, **options) as manager:
        begun = time.perf_counter()
        for prompt, length in requests:
            manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
        results: list[Any] = []
        while len(results) < len(requests):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                results.append(result)
            elif not manager.is_running():
                raise RuntimeError(f"it stopped after {len(results)} of {len(requests)} requests")
        seconds = time.perf_counter() - begun
    if failed := [result.error for result in results if result.error]:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    num_tokens = sum(len(result.generated_tokens) for result in results)
    figures = {
        "requests": len(requests),
        "output_tokens": num_tokens,
        "seconds": round(seconds, 3),
        "output_tok_per_s": round(num_tokens / seconds),
        "attention": model.config._attn_implementation,
    }
    line = f"{seconds:9.2f} s  {figures['output_tok_per_s']:9,} output tok/s"
    context.report.add("continuous batching", figures, line)


@torch.no_grad()
def _loop_ms(context: Context, model: Any, batch: int, prompt_len: int, steps: int) -> float:
    """Returns milliseconds per step of compiled greedy decoding, without the prompt."""
    cache = StaticCache(config=model.config, max_cache_len=prompt_len + steps + 8)
    ids = torch.randint(16, model.config.vocab_size, (batch, prompt_len), device=context.device)
    step = torch.compile(model.forward, mode="reduce-overhead") if context.is_real else model

    def decode(run: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = run(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    token = decode(model, ids)
    for _ in range(4):  # compiles and captures graphs
        token = decode(step, token.clone())
    _wait(context)
    begun = time.perf_counter()
    for _ in range(steps):
        token = decode(step, token.clone())
    _wait(context)
    return 1e3 * (time.perf_counter() - begun) / steps


def _wait(context: Context) -> None:
    if context.is_real:
        torch.cuda.synchronize()
