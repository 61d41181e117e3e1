"""Hidden states that a model keeps for draft heads, and the products that heads use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.models import load_step_model
from support.paged import PagedRunner
from support.plans import ints
from taco_worker.models.plan.builder import Module, PlanBuilder
from taco_worker.models.plan.model_plan import TensorNames
from taco_worker.models.plan.ops.input import Input
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.heads.row_model import RowModel

ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {"hidden_size": 72, "head_dim": 20, "tie_word_embeddings": True},
    "opt-350m": {
        "architecture": "OPTForCausalLM",
        "do_layer_norm_before": False,
        "word_embed_proj_dim": 40,
    },
    "gpt2": {"architecture": "GPT2LMHeadModel"},
}
NUM_LAYERS = 4
TOKENS = torch.randint(384, (21,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ARCHITECTURES[request.param]
    depth = "n_layer" if request.param == "gpt2" else "num_hidden_layers"
    path = tmp_path_factory.mktemp(request.param)
    # The weights are exact in both dtypes that the tests load.
    return make_checkpoint(path, dtype=torch.bfloat16, **{depth: NUM_LAYERS}, **options)  # type: ignore[arg-type]


@pytest.fixture(params=["torch", "kernels"])
def serves(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model(checkpoint: Path, serves: str) -> StepModel:
    return load_step_model(checkpoint, serves)


@torch.inference_mode()
def expected_outputs(checkpoint: Path) -> list[Tensor]:
    """The outputs of each layer, as transformers computes them."""
    oracle = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    outputs = oracle(torch.tensor([TOKENS]), output_hidden_states=True)
    return [hidden[0] for hidden in outputs.hidden_states[1:]]


@pytest.mark.parametrize("layers", [(0,), (2, 0, 1)])
def test_outputs_of_layers_are_kept_for_all_tokens(
    checkpoint: Path, serves: str, layers: tuple[int, ...]
) -> None:
    chunks = {"a": TOKENS[:4], "b": TOKENS}
    plain = PagedRunner(load_step_model(checkpoint, serves)).logits_at(chunks, ints([3, 24]))
    model = load_step_model(checkpoint, serves)
    runner = PagedRunner(model)
    model.keep_hidden(layers)
    logits = runner.logits_at(chunks, ints([3, 24]))
    assert torch.equal(logits, plain)

    outputs = expected_outputs(checkpoint)
    expected = torch.cat([outputs[layer] for layer in layers], dim=1)
    expected = torch.cat([expected[:4], expected])
    torch.testing.assert_close(model.kept_hidden, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [(-1,), (1, NUM_LAYERS - 1)])
def test_only_layers_before_the_last_can_be_kept(model: StepModel, layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"hidden states of layer {layers[-1]} cannot be kept"):
        model.keep_hidden(layers)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_embeddings_are_the_checkpoints_own(checkpoint: Path, serves: str, dtype: str) -> None:
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=getattr(torch, dtype)
    )
    table: Tensor = oracle.get_input_embeddings().weight  # type: ignore[assignment]
    model = load_step_model(checkpoint, serves, dtype=dtype)
    model.allocate_kv(4, 16, 64)
    token_ids = torch.tensor([0, 383, 17, 16, 15, 0])
    embedded = model.embed(token_ids)
    assert embedded.dtype == model.hidden_dtype
    torch.testing.assert_close(embedded.float(), table[token_ids].float())


def test_a_lowered_plan_reads_the_callers_columns(model: StepModel) -> None:
    """A plan without attention, whose only op besides Input has a bias."""
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(shape, generator=generator) for shape in ((9, 40), 9, (5, 40)))
    b = PlanBuilder(hidden_size=9)
    columns = b.buffer("columns", 40)
    b.add(Input(columns))
    b.linear(columns, "fc", [Module("fc", 9)], bias=True, out=b.stream)
    sink, lowered = model.lower(b.build("Test", 1, TensorNames()))
    sink.put("fc.weight", 0, weight, None)
    sink.put("fc.bias", 0, bias, None)
    given = x.clone()
    result = RowModel(lowered)(given)
    assert result.dtype == model.hidden_dtype
    assert torch.equal(given, x)
    torch.testing.assert_close(result, x @ weight.T + bias, rtol=1e-4, atol=1e-4)
    assert lowered.weight_bytes > 0


def test_a_plan_has_one_input() -> None:
    b = PlanBuilder(hidden_size=8)
    b.add(Input(b.stream))
    b.add(Input(b.buffer("other", 8)))
    with pytest.raises(ValueError, match="one op Input at most"):
        b.build("Test", 1, TensorNames())
