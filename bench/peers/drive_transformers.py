"""Drives Hugging Face transformers: `generate` on one static batch, padded on the left."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from bench.peers import driver
from bench.peers.workloads import Request


class TransformersEngine:
    def __init__(self, settings: driver.Settings) -> None:
        self.version = f"transformers {transformers.__version__}"
        torch.set_num_threads(settings.threads)
        self._model = AutoModelForCausalLM.from_pretrained(settings.model, dtype="auto").eval()
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def run(self, requests: list[Request]) -> list[driver.Times]:
        """Runs a static batch: short requests wait for the longest; tokens are counted up to
        each one's end.
        """
        driver.reject_schemas(requests)
        driver.reject_adapters(requests)
        longest = max(len(request.prompt) for request in requests)
        ids = torch.zeros(len(requests), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, longest - len(request.prompt) :] = 1
        steps = _Steps()
        num_steps = max(request.num_output_tokens for request in requests)
        output = self._model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=num_steps,
            do_sample=False,
            logits_processor=[steps],
        )
        ended = time.perf_counter()
        assert output.shape[1] == longest + num_steps
        # Logits are processed right before a token is chosen; choosing it costs almost nothing.
        return [
            driver.Times(
                steps.times[0] - steps.started,
                (ended if count == num_steps else steps.times[count - 1]) - steps.started,
                count,
            )
            for count in (request.num_output_tokens for request in requests)
        ]


class _Steps:
    """A logits processor that changes nothing and records when it is called."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.times: list[float] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.times.append(time.perf_counter())
        return scores


@contextmanager
def start(settings: driver.Settings) -> Iterator[TransformersEngine]:
    yield TransformersEngine(settings)


if __name__ == "__main__":
    driver.main(start)
