"""Limits of requests for the log probabilities of large parts of the vocabulary.

An entry costs twelve bytes of a message between services, and about a kilobyte in the gateway. A
gateway whose outputs exceed the scheduler's buffer is disconnected.
"""

from taco_proto.sampling_params import SamplingParams

# Above it, a request is wide: the scheduler runs one at a time.
MAX_NARROW_LOGPROBS = 1024
# Entries of a wide request, of all its positions and sequences.
MAX_WIDE_ENTRIES = 2**20


def is_wide(params: SamplingParams) -> bool:
    """Whether a request asks for more log probabilities of a position than narrow ones may."""
    return max(params.logprobs or 0, params.prompt_logprobs or 0) > MAX_NARROW_LOGPROBS


def excess(params: SamplingParams, num_prompt_tokens: int, max_tokens: int) -> str:
    """Why a request asks for too many log probabilities; empty: it does not."""
    if not is_wide(params):
        return ""
    num_entries = 0
    if params.logprobs is not None:
        num_entries += params.num_sequences * max_tokens * (1 + params.logprobs)
    if params.prompt_logprobs is not None:
        num_entries += (num_prompt_tokens - 1) * (1 + params.prompt_logprobs)
    if num_entries <= MAX_WIDE_ENTRIES:
        return ""
    return (
        f"the request asks for up to {num_entries} log probabilities, and at most "
        f"{MAX_WIDE_ENTRIES} are allowed: ask for fewer tokens, or use logprob_token_ids"
    )
