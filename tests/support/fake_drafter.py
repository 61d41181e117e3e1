"""A draft worker without a model: it knows what the fake worker says, for one seed."""

import zlib
from array import array

import numpy as np

from support.fake_worker import next_token
from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest


class FakeDrafter:
    """Follows requests as a draft worker must, and checks them on the way.

    Args:
        seed: of the sequences that it drafts for; tokens of others it mostly gets wrong.
    """

    def __init__(self, vocab_size: int = 64, max_model_len: int = 128, seed: int = 1) -> None:
        self.info = DrafterInfo(
            name="drafter", model="small", vocab_size=vocab_size, max_model_len=max_model_len
        )
        self.sequences: dict[int, list[int]] = {}
        self._seed = seed
        self._gone: set[int] = set()

    def draft(self, request: DraftRequest) -> DraftReply:
        for number in request.left.tolist():
            del self.sequences[number]
            self._gone.add(number)
        ends = np.cumsum(request.num_tokens).tolist()
        columns = (request.sequences, request.num_known, request.num_tokens, request.num_drafts)
        numbers: list[int] = []
        drafts: list[list[int]] = []
        for row, (number, num_known, count, num_drafts) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            assert number not in self._gone, "a sequence that has ended"
            tokens = self.sequences.setdefault(number, [])
            assert num_known == len(tokens), "tokens were left out or sent twice"
            assert num_drafts > 0
            tokens += request.token_ids[ends[row] - count : ends[row]].tolist()
            if zlib.crc32(array("i", tokens).tobytes()) % 5:  # else it is left out
                numbers.append(number)
                drafts.append(self._continue(tokens, num_drafts))
        return DraftReply(
            request_id=request.request_id,
            sequences=np.array(numbers, dtype=np.int64),
            num_drafts=np.array([len(row) for row in drafts], dtype=np.int32),
            token_ids=np.array([token for row in drafts for token in row], dtype=np.int32),
        )

    def _continue(self, tokens: list[int], num_drafts: int) -> list[int]:
        tokens = list(tokens)
        start = len(tokens)
        for _ in range(num_drafts):
            tokens.append(next_token(tokens, self._seed, self.info.vocab_size))
        return tokens[start:]
