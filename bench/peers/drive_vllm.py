"""Drives vLLM's offline engine; the catalogue sets the environment variables that it needs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import vllm
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams

from bench.peers import driver
from bench.peers.workloads import ADAPTER_RANK, Request


class VllmEngine:
    def __init__(self, settings: driver.Settings) -> None:
        self.version = f"vllm {vllm.__version__}"
        self._adapters = [
            LoRARequest(path, number, path)
            for number, path in enumerate(settings.options.get("adapters", ()), 1)
        ]
        self.llm = LLM(
            model=settings.model,
            dtype=settings.options.get("dtype", "bfloat16"),
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            enable_prefix_caching=settings.prefix_cache,
            disable_log_stats=False,  # statistics include the times of first and last tokens
            seed=0,
            enable_lora=bool(self._adapters),
            max_loras=max(1, len(self._adapters)),
            max_lora_rank=ADAPTER_RANK,
        )

    def run(self, requests: list[Request]) -> list[driver.Times]:
        prompts = [TokensPrompt(prompt_token_ids=request.prompt) for request in requests]
        params = [
            SamplingParams(
                temperature=0.0,
                max_tokens=request.num_output_tokens,
                min_tokens=request.num_output_tokens,
                ignore_eos=True,
                detokenize=False,
                structured_outputs=(
                    None
                    if request.json_schema is None
                    else StructuredOutputsParams(
                        json=request.json_schema, disable_any_whitespace=True
                    )
                ),
            )
            for request in requests
        ]
        adapters = None
        if self._adapters:
            adapters = [
                None if request.adapter is None else self._adapters[request.adapter]
                for request in requests
            ]
        else:
            driver.reject_adapters(requests)
        # The engine's monotonic clock and the arrival's wall clock have different origins.
        submitted = time.monotonic()
        outputs = self.llm.generate(prompts, params, use_tqdm=False, lora_request=adapters)
        return [
            driver.Times(
                first_token=output.metrics.first_token_ts - submitted,
                last_token=output.metrics.last_token_ts - submitted,
                num_tokens=len(output.outputs[0].token_ids),
            )
            for output in outputs
        ]


@contextmanager
def start(settings: driver.Settings) -> Iterator[VllmEngine]:
    engine = VllmEngine(settings)
    try:
        yield engine
    finally:
        engine.llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    driver.main(start)
