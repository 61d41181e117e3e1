"""Random checkpoints of heads under their published names, and sequences to draft for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from support.plans import ints
from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import EMPTY, JoinedSequences
from taco_worker.speculation.drafter import ComputedTokens, Drafter


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Norms about 1, the others of a size that keeps what they multiply in range."""
    generator = torch.Generator().manual_seed(seed)

    def random(name: str, shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, generator=generator)
        return 1 + values / 4 if "norm" in name else values * shape[-1] ** -0.5

    return {name: random(name, shape) for name, shape in shapes.items()}


def write_heads(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], file: str
) -> Path:
    """A checkpoint whose weights lie in `file`: .safetensors, or else a state dict."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(dict(tensors), path / file)
    else:
        torch.save(dict(tensors), path / file)
    return path


def join(drafter: Drafter, sequences: Mapping[int, Sequence[int]]) -> None:
    """Sequences, by slot, enter with their tokens."""
    token_ids = [token_id for tokens in sequences.values() for token_id in tokens]
    num_tokens = ints([len(tokens) for tokens in sequences.values()])
    drafter.join(
        JoinedSequences(
            slots=ints(list(sequences)),
            num_prompt_tokens=num_tokens,
            num_tokens=num_tokens,
            num_computed_tokens=np.zeros_like(num_tokens),
            token_ids=ints(token_ids),
            num_blocks=np.zeros_like(num_tokens),
            block_ids=EMPTY,
            sampling=(SamplingParams(),) * len(sequences),
        )
    )


def observe(drafter: Drafter, chunks: Mapping[int, tuple[int, Sequence[int], Tensor]]) -> None:
    """One step's tokens, by slot: position of the first, what follows each, hidden states."""
    drafter.observe(
        ComputedTokens(
            slots=ints(list(chunks)),
            num_tokens=ints([len(tokens) for _, tokens, _ in chunks.values()]),
            positions=ints([position for position, _, _ in chunks.values()]),
            next_token_ids=ints([i for _, tokens, _ in chunks.values() for i in tokens]),
            hidden=torch.cat([hidden for _, _, hidden in chunks.values()]),
        )
    )


def append(drafter: Drafter, tokens: Mapping[int, Sequence[int]]) -> None:
    drafter.append(
        ints(list(tokens)),
        ints([len(new) for new in tokens.values()]),
        ints([token_id for new in tokens.values() for token_id in new]),
    )


def paths_of(trees: DraftTrees) -> list[dict[tuple[int, ...], int]]:
    """Of each tree: the tokens from the root to each node, and the node's class.

    Asserts what every drafter owes: depth first, the first child right behind its parent, siblings
    that differ.
    """
    assert trees.num_nodes.sum() == trees.token_ids.size == trees.parents.size == trees.classes.size
    rows: list[dict[tuple[int, ...], int]] = []
    end = 0
    for count in trees.num_nodes.tolist():
        start, end = end, end + count
        paths: list[tuple[int, ...]] = []
        row: dict[tuple[int, ...], int] = {}
        open_nodes = [-1]
        for node in range(count):
            parent = int(trees.parents[start + node])
            assert parent in open_nodes, "not depth first"
            del open_nodes[open_nodes.index(parent) + 1 :]
            open_nodes.append(node)
            above = paths[parent] if parent >= 0 else ()
            path = (*above, int(trees.token_ids[start + node]))
            assert path not in row, "the same token twice below one node"
            paths.append(path)
            row[path] = int(trees.classes[start + node])
        rows.append(row)
    return rows
