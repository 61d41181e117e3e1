"""Beam search without a scheduler, and what it must give on the fake worker under any schedule."""

from collections.abc import Callable, Set

from support.fake_worker import candidates
from taco_proto.requests import FinishReason
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import WorkerInfo
from taco_scheduler.state.beam_search import BeamSearch, Candidates

# Tokens, log probabilities and the reason of each text, best first.
Answer = list[tuple[list[int], list[float], FinishReason]]


def run_search(
    search: BeamSearch,
    candidates_after: Callable[[tuple[int, ...]], Candidates],
    ends: Set[int],
    max_tokens: int,
) -> None:
    """Runs a search to its end.

    Args:
        candidates_after: the candidates behind a text, which is the part after the prompt.
    """
    continues = True
    while continues:
        texts = [tuple(part.token_id for part in beam.path()) for beam in search.beams]
        continues = search.advance(
            [candidates_after(text) for text in texts], ends.__contains__, max_tokens
        )
        assert len(search.beams) <= search.width
    assert not search.beams


def expected_answer(prompt: list[int], sampling: SamplingParams, info: WorkerInfo) -> Answer:
    ends = set(sampling.stop_token_ids or ())
    if not sampling.ignore_eos:
        ends.update(info.eos_token_ids)
    assert sampling.max_tokens is not None
    limit = min(
        len(prompt) + sampling.max_tokens,
        info.max_model_len,
        info.num_blocks * info.block_size + 1,
    )
    width = sampling.num_sequences
    search = BeamSearch(width, sampling.length_penalty, sampling.early_stopping)

    def candidates_after(text: tuple[int, ...]) -> Candidates:
        options = candidates([*prompt, *text], width + len(ends), info.vocab_size)
        ids = [token for _, token in options]
        return Candidates(ids[0], ids, [logprob for logprob, _ in options])

    run_search(search, candidates_after, ends, limit - len(prompt))
    return [
        (
            [beam.token_id for beam in text.beam.path()],
            [beam.logprob for beam in text.beam.path()],
            FinishReason.STOP if text.is_stopped else FinishReason.LENGTH,
        )
        for text in search.finished[: sampling.n]
    ]
