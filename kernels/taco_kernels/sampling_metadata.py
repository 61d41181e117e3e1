"""How tokens are to be chosen, as columns: what the sampling kernels of every device take."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# The token of a row whose greatest logit is not finite: a logit is NaN or infinite, or all are
# -inf, so that there is no distribution to choose from.
NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """How each row's token is chosen; columns [num_rows], contiguous.

    The order is min_p, top_k, top_p (over what the others have left). A filter is a threshold on
    the probability: tokens that tie with the least likely one kept are kept too.

    Attributes:
        temperature: float32; 0 is the most likely token, the lowest id of several.
        min_p: float32, 0 is off.
        top_k: int32, 0 is off.
        top_p: float32, 1 is off.
        uniforms: float64 in [0, 1), of rows with a temperature.
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
    """Changes to some rows' logits that depend on their sequences' tokens; columns [num_chosen].

    Attributes:
        rows: int64, of the logits, each at most once.
        sequences: int32, rows of the table of tokens.
        starts, lengths: int32, where a sequence's output begins and ends.
        repetition: float32, divides positive and multiplies negative logits of all of a sequence's
            tokens; 1 is off.
        presence, frequency: float32, taken from the logits of tokens of the output, once and for
            each time that they occur; 0 is off.
        ngram_size: int32: no n-gram of this size occurs twice; 0 is off.
    """

    rows: Array
    sequences: Array
    starts: Array
    lengths: Array
    repetition: Array
    presence: Array
    frequency: Array
    ngram_size: Array
