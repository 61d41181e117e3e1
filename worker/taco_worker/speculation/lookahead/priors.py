"""What is believed of each class of nodes before any was verified."""

from __future__ import annotations

import numpy as np

from taco_kernels.cpu.lookahead import NUM_LENGTHS, NUM_SHARES
from taco_worker.speculation.drafter import FloatArray

# Of the tokens that follow where 1, 2, 3 to 4, 5 to 6, 7 to 15 and more tokens agree, the share
# that is right if there is one candidate.
_BY_LENGTH = (0.3, 0.45, 0.6, 0.7, 0.85, 0.95)
# By a candidate's share of the weight: four fifths at least, half, a fifth, and less.
_BY_SHARE = (1.0, 0.75, 0.4, 0.1)


def class_priors() -> FloatArray:
    """float32 [NUM_CLASSES], in the order of csrc/lookahead_tree.h: from the table, from the
    sequence itself, each by length and share; then raw, by length."""
    by_evidence = np.outer(_BY_LENGTH, _BY_SHARE)
    assert by_evidence.shape == (NUM_LENGTHS, NUM_SHARES)
    parts = [by_evidence.ravel(), by_evidence.ravel(), np.array(_BY_LENGTH)]
    return np.concatenate(parts).astype(np.float32)
