"""Logits processors for tests, in the forms that an operator or a program gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from taco_proto.sampling_params import SamplingParams
from taco_worker.processors.loading import ProcessorContext


def ban_last(output: list[int], logits: Tensor) -> Tensor:
    """In place: the next token differs from the last one."""
    if output:
        logits[output[-1]] = -math.inf
    return logits


def follow_history(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
    """A new tensor that depends on every token of the prompt and the output."""
    token_id = (sum(prompt) + 7 * sum(output) + len(output)) % logits.shape[0]
    changed = logits.clone()
    changed[token_id] = changed.max() + 1
    return changed


class Raises:
    """Raises at the token after `num_tokens` output tokens, or whenever it sees `token_id` last."""

    def __init__(self, num_tokens: int = -1, token_id: int = -1, error: Any = RuntimeError) -> None:
        self.num_tokens, self.token_id, self.error = num_tokens, token_id, error

    def __call__(self, output: list[int], logits: Tensor) -> Tensor:
        if len(output) == self.num_tokens or output[-1:] == [self.token_id]:
            raise self.error("secret of the operator")
        return logits


class Returns:
    """Returns what a processor must not return."""

    def __init__(self, make: Callable[[Tensor], object]) -> None:
        self.make = make

    def __call__(self, output: list[int], logits: Tensor) -> object:
        return self.make(logits)


class Counts:
    """Counts its calls; a clone has its own counter. Bans tokens up to the number of calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    def clone(self) -> Counts:
        return Counts()

    def __call__(self, output: list[int], logits: Tensor) -> Tensor:
        self.num_calls += 1
        assert self.num_calls == len(output) + 1
        return logits


class Force:
    """Served: every token is `forced_token`."""

    def __init__(self, context: ProcessorContext) -> None:
        self.vocab_size = context.vocab_size

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        token_id = (params.extra_args or {}).get("forced_token")
        if token_id is None:
            return None
        if not isinstance(token_id, int) or not 0 <= token_id < self.vocab_size:
            raise ValueError("forced_token must be a token id")

        def force(output: list[int], logits: Tensor) -> Tensor:
            kept = logits[token_id].item()
            logits.fill_(-math.inf)
            logits[token_id] = kept
            return logits

        return force


class Fails:
    """Served: raises where `fail_at` says; at 0 output tokens when the sequence joins."""

    def __init__(self, context: ProcessorContext) -> None:
        pass

    def validate_params(self, params: SamplingParams) -> None:
        if (params.extra_args or {}).get("fail_at") == "validation":
            raise ValueError("fail_at is wrong")
        if (params.extra_args or {}).get("fail_at") == "text":
            raise ValueError("no text: \ud800" + "x" * 10**6)

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        place = (params.extra_args or {}).get("fail_at")
        if place == "start":
            raise KeyError("secret of the operator")
        return Raises(place, error=SystemExit) if isinstance(place, int) else None


class Always:
    """Served: bans token 5 in every request."""

    def __init__(self, context: ProcessorContext) -> None:
        self.eos_token_ids = context.eos_token_ids

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        def ban(output: list[int], logits: Tensor) -> Tensor:
            logits[5] = -math.inf
            return logits

        return ban


class NoMethod:
    def __init__(self, context: ProcessorContext) -> None:
        pass


class FailsToStart:
    def __init__(self, context: ProcessorContext) -> None:
        raise OSError("no such file")
