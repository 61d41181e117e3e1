"""Log probabilities in replies of the Inference service."""

from taco_gateway.text.output.token_logprobs import Candidate, TokenLogprob
from taco_proto import inference_pb2 as pb


def logprob_message(row: TokenLogprob) -> pb.TokenLogprob:
    """The log probabilities of one token of the answer."""
    return pb.TokenLogprob(
        chosen=_candidate(row.chosen, row), top=[_candidate(entry, row) for entry in row.top]
    )


def _candidate(candidate: Candidate, row: TokenLogprob) -> pb.CandidateLogprob:
    is_shown = row.in_text or candidate.token_id != row.chosen.token_id
    return pb.CandidateLogprob(
        token_id=candidate.token_id,
        token=candidate.token_bytes if is_shown else b"",
        logprob=candidate.logprob,
        rank=candidate.rank,
    )
