"""What the sampler should choose, one row at a time and in float64."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taco_proto.sampling_params import SamplingParams

_MASK = 2**64 - 1
# Probabilities are float32 in the sampler: shares closer than this may fall to either side.
_TOLERANCE = 1e-5

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One sequence: its parameters, its tokens so far, and its logits.

    Attributes:
        allowed: the tokens of its grammar's mask; None: it has no grammar.
    """

    params: SamplingParams
    prompt: list[int]
    output: list[int]
    logits: npt.NDArray[np.float32]
    allowed: frozenset[int] | None = None

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


def uniform(seed: int, position: int) -> float:
    gamma = 0x9E3779B97F4A7C15
    key = _mix((seed + gamma) & _MASK)
    return (_mix((key + position * gamma) & _MASK) >> 12) / 2**52


def changed_logits(row: Row, eos_token_ids: list[int]) -> FloatArray:
    """Logits after everything that also counts for greedy decoding."""
    logits = _penalized_logits(row, eos_token_ids)
    if row.allowed is not None:
        logits[[i for i in range(logits.size) if i not in row.allowed]] = -np.inf
    return logits


def _penalized_logits(row: Row, eos_token_ids: list[int]) -> FloatArray:
    params, logits = row.params, row.logits.astype(np.float64)
    for token_id, bias in (params.logit_bias or {}).items():
        if token_id < logits.size:
            logits[token_id] += bias
    for token_id in set(row.tokens):
        value = logits[token_id]
        factor = params.repetition_penalty
        logits[token_id] = value / factor if value > 0 else value * factor
    for token_id in set(row.output):
        count = row.output.count(token_id)
        logits[token_id] -= params.frequency_penalty * count + params.presence_penalty
    if len(row.output) < params.min_tokens:
        # Where a grammar ends the text, as the scheduler reads it, the end is not ignored.
        has_eos = row.allowed is not None or not params.ignore_eos
        ends = list(params.stop_token_ids or ()) + (eos_token_ids if has_eos else [])
        logits[[token_id for token_id in ends if token_id < logits.size]] = -np.inf
    logits[_ngram_ends(row.tokens, params.no_repeat_ngram_size)] = -np.inf
    for *before, last in params.bad_words_token_ids or ():
        fits = max(*before, last, 0) < logits.size and len(before) <= len(row.output)
        if fits and row.output[len(row.output) - len(before) :] == before:
            logits[last] = -np.inf
    if params.allowed_token_ids is not None:
        allowed = [i for i in params.allowed_token_ids if i < logits.size]
        if allowed:
            kept = np.full_like(logits, -np.inf)
            kept[allowed] = logits[allowed] if np.isfinite(logits[allowed]).any() else 0.0
            return kept
    return logits


def acceptable_tokens(row: Row, eos_token_ids: list[int]) -> set[int]:
    """The token to choose; several only where float32 may tip the balance."""
    logits = changed_logits(row, eos_token_ids)
    if row.params.is_greedy:
        return set(np.flatnonzero(logits >= logits.max() - _TOLERANCE).tolist())
    probs = np.exp((logits - logits.max()) / row.params.temperature)
    probs /= probs.sum()
    share = uniform(row.params.seed or 0, len(row.tokens))
    accepted: set[int] = set()
    for slack in (-_TOLERANCE, 0.0, _TOLERANCE):
        kept = _filtered(probs, row.params, slack)
        if not kept.any():
            continue  # a min_p of 1 and some slack
        cdf = np.cumsum(kept) / kept.sum()
        below = cdf - kept / kept.sum()
        hit = (below <= share + _TOLERANCE) & (share - _TOLERANCE < cdf) & (kept > 0)
        accepted.update(np.flatnonzero(hit).tolist())
    return accepted


def _filtered(probs: FloatArray, params: SamplingParams, slack: float) -> FloatArray:
    kept = np.where(probs < params.min_p * probs.max() * (1 + slack), 0.0, probs)
    if params.top_k > 0:
        threshold = np.sort(kept)[::-1][min(params.top_k, kept.size) - 1]
        kept = np.where(kept < threshold, 0.0, kept)
    if params.top_p < 1.0:
        ranked = np.sort(kept)[::-1]
        reached = np.cumsum(ranked) >= (params.top_p + slack) * ranked.sum()
        threshold = ranked[np.argmax(reached)] if reached.any() else 0.0
        kept = np.where(kept < threshold, 0.0, kept)
    return kept


def _ngram_ends(tokens: list[int], size: int) -> list[int]:
    if size == 0 or len(tokens) < size:
        return []
    tail = tokens[len(tokens) - size + 1 :]
    starts = range(len(tokens) - size + 1)
    return [tokens[i + size - 1] for i in starts if tokens[i : i + size - 1] == tail]


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)
