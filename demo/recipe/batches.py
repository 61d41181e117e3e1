"""Documents packed into rows of fixed length."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from recipe.chat import BEGIN, END, ChatEncoder, TokenizedDocument
from recipe.questions import ConversationSampler

SHORT_ROW = 256
LONG_ROW = 1024
SHARE_OF_LONG_CONVERSATIONS = 0.25


@dataclass(frozen=True)
class Batch:
    """Packed rows. Tensors have shape (rows, length); mask has (rows, 1, length, length).

    ``labels`` holds the token that follows where the model is trained on it, and -100 elsewhere.
    ``positions`` start at 0 in each document, and ``mask`` keeps documents apart.
    """

    token_ids: Tensor
    labels: Tensor
    positions: Tensor
    mask: Tensor | None


def pack(rows: list[list[TokenizedDocument]], length: int) -> Batch:
    """Pack documents into rows. The documents of a row must have at most length tokens in all."""
    token_ids = torch.zeros(len(rows), length, dtype=torch.long)
    labels = torch.full((len(rows), length), -100)
    positions = torch.zeros(len(rows), length, dtype=torch.long)
    document = torch.zeros(len(rows), length, dtype=torch.long)
    for row, documents in enumerate(rows):
        start = 0
        for number, packed in enumerate(documents, start=1):
            end = start + len(packed.token_ids)
            ids = torch.tensor(packed.token_ids)
            token_ids[row, start:end] = ids
            targets = torch.tensor(packed.is_target)
            labels[row, start : end - 1] = torch.where(targets[1:], ids[1:], -100)
            positions[row, start:end] = torch.arange(end - start)
            document[row, start:end] = number
            start = end
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    mask = (document[:, :, None] == document[:, None, :]) & causal
    return Batch(token_ids, labels, positions, mask[:, None])


class ConversationRows:
    """Rows of short conversations, filled first-fit from a small pool."""

    def __init__(self, sampler: ConversationSampler, encoder: ChatEncoder) -> None:
        self._sampler = sampler
        self._encoder = encoder
        self._pool: list[TokenizedDocument] = []

    def take(self, rows: int) -> Batch:
        return pack([self._row() for _ in range(rows)], SHORT_ROW)

    def _row(self) -> list[TokenizedDocument]:
        documents: list[TokenizedDocument] = []
        free = SHORT_ROW
        while True:
            self._refill()
            fitting = next((d for d in self._pool if len(d.token_ids) <= free), None)
            if fitting is None:
                return documents
            self._pool.remove(fitting)
            documents.append(fitting)
            free -= len(fitting.token_ids)

    def _refill(self) -> None:
        while len(self._pool) < 64:
            document = self._encoder.conversation(self._sampler.draw())
            if len(document.token_ids) <= SHORT_ROW:
                self._pool.append(document)


class LongRows:
    """Rows of full context length: pieces of source files, and sometimes a long conversation."""

    def __init__(
        self,
        source: list[str],
        sampler: ConversationSampler,
        encoder: ChatEncoder,
        rng: random.Random,
    ) -> None:
        self._pieces = source_pieces(source, encoder)
        self._sampler = sampler
        self._encoder = encoder
        self._rng = rng
        self._order: Iterator[TokenizedDocument] = iter(())

    def take(self, rows: int) -> Batch:
        batch = pack([[self._document()] for _ in range(rows)], LONG_ROW)
        # With one document per row, plain causal attention gives the same result faster.
        return Batch(batch.token_ids, batch.labels, batch.positions, mask=None)

    def _document(self) -> TokenizedDocument:
        if self._rng.random() < SHARE_OF_LONG_CONVERSATIONS:
            conversation = self._encoder.conversation(self._sampler.draw_long())
            return TokenizedDocument(
                conversation.token_ids[:LONG_ROW], conversation.is_target[:LONG_ROW]
            )
        piece = next(self._order, None)
        if piece is None:
            self._order = iter(self._rng.sample(self._pieces, len(self._pieces)))
            piece = next(self._order)
        return piece


def source_pieces(files: list[str], encoder: ChatEncoder) -> list[TokenizedDocument]:
    """Source files cut into pieces that fill a long row; every token is a target."""
    pieces = []
    for text in files:
        token_ids = [*encoder.plain(text), encoder.special[END]]
        for start in range(0, len(token_ids), LONG_ROW - 1):
            piece = [encoder.special[BEGIN], *token_ids[start : start + LONG_ROW - 1]]
            pieces.append(TokenizedDocument(piece, [True] * len(piece)))
    return pieces
