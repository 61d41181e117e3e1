"""Requests with lengths like those of ShareGPT's conversations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_LOW_ID = 16  # above the special tokens


@dataclass(frozen=True, slots=True)
class Mix:
    """Log-normal lengths in tokens: `median` times the exponential of `sigma` standard normals.

    Attributes:
        longest: maximum of a prompt, and of an answer.
    """

    count: int
    prompt_median: float
    output_median: float
    longest: int
    vocab_size: int
    sigma: float = 1.0

    def requests(self, seed: int = 0) -> list[tuple[list[int], int]]:
        """Returns prompts of random token ids and the number of output tokens of each."""
        rng = random.Random(seed)

        def length(middle: float) -> int:
            return round(min(max(middle * rng.lognormvariate(0.0, self.sigma), 4), self.longest))

        prompts = random_prompts(
            [length(self.prompt_median) for _ in range(self.count)], self.vocab_size, seed
        )
        return [(prompt, length(self.output_median)) for prompt in prompts]


def random_prompts(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(_LOW_ID, vocab_size) for _ in range(length)] for length in lengths]


SHAREGPT_LIKE = Mix(384, 120, 150, 1024, vocab_size=128256)
TRIAL = Mix(3, 8, 4, 12, vocab_size=512)
