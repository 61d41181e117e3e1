"""Sampling operations in torch: the reference of the CPU and Triton kernels; run on any device."""

import numpy as np
import torch
from torch import Tensor

from taco_kernels.sampling_metadata import NO_TOKEN
from taco_worker.sampling.ops import Penalties, SamplingMetadata
from taco_worker.sampling.slot_params import Array
from taco_worker.sampling.token_masks import TokenMasks, mask_logits
from taco_worker.sampling.top_k_top_p import Filters, RowValues, draw_tokens
from taco_worker.sampling.torch_penalties import (
    apply_count_penalties,
    apply_repetition_penalty,
    ban_repeated_ngrams,
)


class TorchSampling:
    """`SamplingOps` on any device; each operation runs only on the rows that use it."""

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        random_rows = np.flatnonzero(metadata.temperature)
        token_ids = most_likely(logits)
        if random_rows.size:
            rows = _upload(random_rows, logits)
            drawn = _draw(logits[rows], metadata, random_rows)
            token_ids[rows] = torch.where(token_ids[rows] == NO_TOKEN, NO_TOKEN, drawn)
        return token_ids

    def penalize(self, logits: Tensor, tokens: Tensor, penalties: Penalties) -> None:
        def upload(column: Array, chosen: Array) -> Tensor:
            return _upload(column[chosen], logits)

        def tokens_of(chosen: Array) -> Tensor:
            longest = int(penalties.lengths[chosen].max())
            return tokens[upload(penalties.sequences, chosen), :longest].long()

        if (chosen := np.flatnonzero(penalties.repetition != 1)).size:
            apply_repetition_penalty(
                logits,
                upload(penalties.rows, chosen),
                tokens_of(chosen),
                upload(penalties.lengths, chosen),
                upload(penalties.repetition, chosen),
            )
        if (chosen := np.flatnonzero((penalties.presence != 0) | (penalties.frequency != 0))).size:
            apply_count_penalties(
                logits,
                upload(penalties.rows, chosen),
                tokens_of(chosen),
                upload(penalties.starts, chosen),
                upload(penalties.lengths, chosen),
                upload(penalties.presence, chosen),
                upload(penalties.frequency, chosen),
            )
        if (chosen := np.flatnonzero(penalties.ngram_size)).size:
            ban_repeated_ngrams(
                logits,
                upload(penalties.rows, chosen),
                tokens_of(chosen),
                upload(penalties.lengths, chosen),
                upload(penalties.ngram_size, chosen),
            )

    def mask(self, logits: Tensor, masks: TokenMasks) -> None:
        mask_logits(logits, _upload(masks.rows, logits), _upload(masks.bits, logits))

    def gather_logprobs(
        self, logits: Tensor, token_ids: Tensor, num_top: Array
    ) -> tuple[Tensor, Tensor, Tensor]:
        logprobs = torch.log_softmax(logits, dim=-1)
        chosen = logprobs.gather(1, token_ids.unsqueeze(1))
        ranks = (logprobs > chosen).sum(-1) + 1
        top = logprobs.topk(int(num_top.max(initial=0)))
        ids = torch.cat((token_ids.unsqueeze(1), top.indices), dim=1)
        values = torch.cat((chosen, top.values), dim=1)
        return ids, values, ranks


def most_likely(logits: Tensor) -> Tensor:
    """The first of the greatest logits of each row, or NO_TOKEN: int64 [num_rows].

    Args:
        logits: floating [num_rows, vocab_size].
    """
    best = logits.max(-1)  # NaN if a logit is NaN
    return best.indices.masked_fill_(best.values.sub(best.values) != 0, NO_TOKEN)


def _draw(logits: Tensor, metadata: SamplingMetadata, rows: Array) -> Tensor:
    """Draw tokens; logits [rows.size, vocab_size] belong to `rows` of the metadata."""

    def filter_of(column: Array, off: int) -> RowValues | None:
        chosen = np.flatnonzero(column[rows] != off)
        if not chosen.size:
            return None
        return RowValues(_upload(chosen, logits), _upload(column[rows[chosen]], logits))

    top_k = metadata.top_k.astype(np.int64).clip(max=logits.shape[1])
    filters = Filters(
        min_p=filter_of(metadata.min_p, 0),
        top_k=filter_of(top_k, 0),
        max_top_k=int(top_k[rows].max()),
        top_p=filter_of(metadata.top_p, 1),
    )
    temperature = _upload(metadata.temperature[rows], logits)
    return draw_tokens(logits, temperature, _upload(metadata.uniforms[rows], logits), filters)


def _upload(array: Array, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)
