"""Plans that read columns of the caller, on every instruction set: bits of rows and of KV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.cpu_kernels import EMULATED, NATIVE
from support.eagle_reference import CONFIGS, HIDDEN, eagle_shapes
from support.heads import random_tensors, write_heads
from support.models import load_step_model
from support.plans import ints
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.speculation.heads.eagle_recipe import eagle_plans
from taco_worker.speculation.heads.head_checkpoint import HeadCheckpoint

FIRST_POSITION = 48  # of the first token whose KV is there
COLUMNS = torch.randn(40, 2 * HIDDEN, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def heads_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = random_tensors(eagle_shapes("eagle"))
    path = tmp_path_factory.mktemp("heads")
    return write_heads(path, CONFIGS["eagle"], tensors, "model.safetensors")


@pytest.fixture(scope="module", params=[*NATIVE, *EMULATED])
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["float32", "bfloat16"])
def layer(
    request: pytest.FixtureRequest, target_path: Path, heads_path: Path, isa: str
) -> StepModel:
    target = load_step_model(target_path, isa, dtype=request.param)
    checkpoint = HeadCheckpoint.read(heads_path)
    plans = eagle_plans(checkpoint.fields, checkpoint.tensor_names)
    (layer,) = checkpoint.load(plans.all, target)
    layer.allocate_kv(8, 16, 128)
    return layer


def run(layer: StepModel, begin: int, end: int, output_rows: list[int]) -> Tensor:
    """Tokens [begin, end) of one sequence in blocks 2, 5 and 1."""
    count = end - begin
    return layer.forward(
        ModelInput(
            token_ids=torch.zeros(count, dtype=torch.int32),
            positions=np.arange(begin, end, dtype=np.int32) + FIRST_POSITION,
            query_start=ints([0, count]),
            seq_lens=ints([end]),
            block_tables=np.array([[2, 5, 1]], dtype=np.int32),
            output_rows=ints(output_rows),
            columns=COLUMNS[begin:end].contiguous(),
        )
    )


def test_outputs_do_not_depend_on_chunks_and_skipped_rows(layer: StepModel) -> None:
    count = COLUMNS.shape[0]
    whole = run(layer, 0, count, list(range(count)))
    assert whole.isfinite().all()
    # Few outputs: the rest of the layer runs for these rows alone.
    assert torch.equal(run(layer, 0, count, [3, count - 1]), whole[[3, count - 1]])
    parts = [run(layer, begin, min(begin + 13, count), [0]) for begin in range(0, count, 13)]
    assert torch.equal(torch.cat(parts), whole[::13])


def test_copied_kv_is_read_as_the_original(layer: StepModel) -> None:
    count = COLUMNS.shape[0]
    whole = run(layer, 0, count, [count - 1])
    places = np.arange(32, count - 1)
    layer.append_kv(places % 16 + 16, places % 16 + 7 * 16)  # block 1 into block 7
    step = ModelInput(
        token_ids=torch.zeros(1, dtype=torch.int32),
        positions=ints([count - 1 + FIRST_POSITION]),
        query_start=ints([0, 1]),
        seq_lens=ints([count]),
        block_tables=np.array([[2, 5, 7]], dtype=np.int32),
        output_rows=ints([0]),
        columns=COLUMNS[-1:].contiguous(),
    )
    assert torch.equal(layer.forward(step), whole)


@pytest.mark.parametrize("columns", [None, COLUMNS[:1, 1:], COLUMNS[:1].double(), COLUMNS])
def test_wrong_columns_are_rejected(layer: StepModel, columns: Tensor | None) -> None:
    step = ModelInput(
        token_ids=torch.zeros(1, dtype=torch.int32),
        positions=ints([0]),
        query_start=ints([0, 1]),
        seq_lens=ints([1]),
        block_tables=np.array([[2]], dtype=np.int32),
        output_rows=ints([0]),
        columns=columns,
    )
    with pytest.raises(ValueError, match="the input columns must be"):
        layer.forward(step)
