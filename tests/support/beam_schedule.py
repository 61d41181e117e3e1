"""What beam search on the fake worker must give, under any schedule."""

from support.fake_worker import candidates
from taco_proto.requests import FinishReason
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import WorkerInfo
from taco_scheduler.state.beam_search import BeamSearch, Candidates

# Tokens, log probabilities and the reason of each text, best first.
Answer = list[tuple[list[int], list[float], FinishReason]]


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
    continues = True
    while continues:
        rows = []
        for beam in search.beams:
            tokens = prompt + [part.token_id for part in beam.path()]
            options = candidates(tokens, width + len(ends), info.vocab_size)
            ids = [token for _, token in options]
            rows.append(Candidates(ids[0], ids, [logprob for logprob, _ in options]))
        continues = search.advance(rows, ends.__contains__, limit - len(prompt))
    return [
        (
            [beam.token_id for beam in text.beam.path()],
            [beam.logprob for beam in text.beam.path()],
            FinishReason.STOP if text.is_stopped else FinishReason.LENGTH,
        )
        for text in search.finished[: sampling.n]
    ]
