"""Sampling parameters of a batch as columns, for the sampling kernels of every device."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# The token of a row whose greatest logit is not finite: a logit is NaN or infinite, or all are
# -inf, so that there is no distribution to sample from.
NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """How each row's token is sampled; contiguous columns [num_rows].

    Filters apply in the order min_p, top_k, top_p; top_p refers to the tokens that the others kept.
    A filter is a threshold on the probability: tokens that tie with the least likely kept one are
    kept too.

    Attributes:
        temperature: float32; 0 takes the most likely token, the lowest id among equals.
        min_p: float32, 0 is off.
        top_k: int32, 0 is off.
        top_p: float32, 1 is off.
        uniforms: float64 in [0, 1), random numbers of rows with a temperature.
    """

    temperature: Array
    min_p: Array
    top_k: Array
    top_p: Array
    uniforms: Array

    @classmethod
    def greedy(cls, num_rows: int) -> "SamplingMetadata":
        zeros, ones = np.zeros(num_rows, np.float32), np.ones(num_rows, np.float32)
        return cls(zeros, zeros, np.zeros(num_rows, np.int32), ones, np.zeros(num_rows))


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties on some rows' logits by their sequences' tokens; columns [num_penalized].

    Attributes:
        rows: int64, rows of the logits, each at most once.
        sequences: int32, rows of the token table.
        starts, lengths: int32, begin and end of a sequence's output.
        repetition: float32, divides positive and multiplies negative logits of all tokens of the
            sequence; 1 is off.
        presence, frequency: float32, subtracted from the logits of output tokens, once and for each
            occurrence; 0 is off.
        ngram_size: int32, no n-gram of this size may occur twice; 0 is off.
    """

    rows: Array
    sequences: Array
    starts: Array
    lengths: Array
    repetition: Array
    presence: Array
    frequency: Array
    ngram_size: Array
