"""Assumed acceptance rates of lookahead drafts before any was verified, by class of node."""

from __future__ import annotations

import numpy as np

from taco_kernels.native.lookahead import NUM_CLASSES
from taco_worker.speculation.drafter import FloatArray

# Acceptance rates, rounded, of drafts in texts of several kinds (Python sources, documentation,
# answers that quote their prompt) under the default options. A row is a match length: 1, 2, 3 to 4,
# 5 to 6, 7 to 15, and more. A column is the candidate's share of the weight: at least four fifths,
# half, a fifth, and less.
_FROM_TABLE = (
    (0.45, 0.20, 0.08, 0.04),
    (0.55, 0.23, 0.09, 0.05),
    (0.70, 0.36, 0.13, 0.08),
    (0.85, 0.60, 0.17, 0.10),
    (0.95, 0.88, 0.30, 0.20),
    (0.95, 0.90, 0.35, 0.20),
)
_FROM_SEQUENCE = (
    (0.50, 0.35, 0.15, 0.07),
    (0.62, 0.45, 0.20, 0.10),
    (0.67, 0.46, 0.21, 0.10),
    (0.75, 0.46, 0.21, 0.10),
    (0.86, 0.46, 0.22, 0.10),
    (0.96, 0.50, 0.40, 0.20),
)
_RAW = (0.25, 0.46, 0.59, 0.68, 0.80, 0.94)


def class_priors() -> FloatArray:
    """float32 [NUM_CLASSES], in the order of native/csrc/lookahead/draft_tree.h."""
    parts = (_FROM_TABLE, _FROM_SEQUENCE, _RAW)
    priors = np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)
    assert priors.size == NUM_CLASSES
    return priors
