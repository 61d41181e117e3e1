"""A variant of an architecture: writes a small random checkpoint as published, and its oracle.

A checkpoint is what its publisher would upload: config.json with the published class and field
names, safetensors with the published tensor names and layouts. The oracle computes the logits of
whole sequences in fp32, without a cache, with transformers wherever that has the architecture.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.checkpoint_tokenizer import (
    BOS_TOKEN_ID,
    END_OF_TURN_TOKEN_ID,
    EOS_TOKEN_ID,
    save_tokenizer,
)

# The vocabulary of the tokenizer that `save_tokenizer` writes; configs repeat it.
VOCAB_SIZE = 384

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Oracle:
    """Logits of whole sequences.

    Attributes:
        forward: token ids [n] -> fp32 logits [n, vocab].
    """

    forward: Callable[[Tensor], Tensor]

    def __call__(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """The fp32 logits [tokens, vocab] of each sequence of token ids."""
        with torch.no_grad():
            return [self.forward(torch.tensor(list(ids))).float() for ids in sequences]

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The `num_tokens` most likely tokens after `prompt`, each computed from scratch."""
        ids = list(prompt)
        for _ in range(num_tokens):
            ids.append(int(self([ids])[0][-1].argmax()))
        return ids[len(prompt) :]


class Layout(Protocol):
    """How an architecture's checkpoints are made and computed.

    Attributes:
        oracle: what computes the logits, for docs/models.md.
    """

    oracle: ClassVar[str]

    def random_checkpoint(
        self, config: Mapping[str, Any], seed: int
    ) -> tuple[dict[str, Any], Tensors]:
        """The whole config.json of `config`, and random fp32 tensors by their published names."""
        ...

    def load(
        self, config: Mapping[str, Any], tensors: Tensors, max_model_len: int | None
    ) -> Oracle:
        """The oracle of a checkpoint; `max_model_len` tokens choose a table that depends on it."""
        ...


@dataclass(frozen=True)
class Variant:
    """One published form of an architecture.

    Attributes:
        name: such as "falcon-40b-like".
        config: the fields of config.json, with "architectures" and "model_type".
        layout: makes and computes its checkpoints.
        fields: (field, other value) pairs for a field sweep. `make(path, **{field: value})` writes
            the checkpoint and `reference(path)` is the oracle of it; a recipe follows the oracle
            or rejects the field. A field may occur with several values.
        rejected: (field, value) pairs that a recipe must reject, since the oracle ignores them.
        without_effect: suffixes of tensors that cannot change logits, such as the key biases of
            attention without rotary positions, which the softmax cancels.
    """

    name: str
    config: Mapping[str, Any]
    layout: Layout
    fields: tuple[tuple[str, Any], ...] = ()
    rejected: tuple[tuple[str, Any], ...] = ()
    without_effect: tuple[str, ...] = field(default=())

    @property
    def architecture(self) -> str:
        return str(self.config["architectures"][0])

    def make(
        self, path: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
    ) -> Path:
        """Write a random checkpoint with a tokenizer into `path` (created) and return `path`.

        Args:
            seed: the same seed and overrides give the same weights.
            overrides: fields of config.json by their published names; `REMOVED` takes a field out.
        """
        path.mkdir(parents=True, exist_ok=True)
        save_tokenizer(path)
        config = {**self.config, **overrides}
        config = {name: value for name, value in config.items() if value is not REMOVED}
        written, tensors = self.layout.random_checkpoint(config, seed)
        written["torch_dtype"] = str(dtype).removeprefix("torch.")
        (path / "config.json").write_text(json.dumps(written, indent=2))
        stored = {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
        save_file(stored, path / "model.safetensors", {"format": "pt"})
        eos_token_ids = [EOS_TOKEN_ID, END_OF_TURN_TOKEN_ID]
        generation = {"bos_token_id": BOS_TOKEN_ID, "eos_token_id": eos_token_ids}
        (path / "generation_config.json").write_text(json.dumps(generation))
        return path

    def reference(self, path: Path, *, max_model_len: int | None = None) -> Oracle:
        """The oracle of the checkpoint in `path`.

        Args:
            max_model_len: the longest sequence in tokens that the engine allows. It fixes rotary
                tables that depend on length; by default the longest that the config gives (for
                QWen and InternLM 2 with dynamic NTK, their training length).
        """
        config = json.loads((path / "config.json").read_text())
        tensors = load_file(path / "model.safetensors")
        return self.layout.load(config, tensors, max_model_len)


# An override that takes the field out of config.json.
class _Removed(Enum):
    """Its text is the same in every process, since tests have it in their names."""

    REMOVED = "removed"

    def __str__(self) -> str:
        return self.value


REMOVED = _Removed.REMOVED


def token_sequences(lengths: Sequence[int] = (1, 9, 40), *, seed: int = 0) -> list[list[int]]:
    """Random token ids, no special ones, for sequences of `lengths` tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths
    ]
