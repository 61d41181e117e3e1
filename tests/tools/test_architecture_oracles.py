"""The oracles themselves: each reads every tensor of its checkpoints.

tests/worker/models/test_field_sweep.py has them answer every swept field.
"""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from support.architectures import native, qwen2_vl, relaid
from support.architectures.reloading import Reloader
from support.architectures.variant import Variant, token_sequences
from support.architectures.variants import VARIANTS
from taco_worker.models.registry import supported_architectures

pytestmark = pytest.mark.slow
SEQUENCES = token_sequences()


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_are_finite_and_depend_on_every_tensor(
    variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloader = Reloader()
    for module in (native, relaid):
        monkeypatch.setattr(module, "load_model", reloader)
    variant.make(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")

    *short, before = variant.layout.load(config, tensors, None)(SEQUENCES)
    assert all(logits.isfinite().all() for logits in (*short, before))
    for name, tensor in tensors.items():
        changed = variant.layout.load(config, tensors | {name: _perturbed(tensor)}, None)
        difference = (changed(SEQUENCES[-1:])[0] - before).abs().max()
        if name.endswith(variant.without_effect or ("none",)):
            assert difference < 1e-4, name
        else:
            assert difference > 1e-4, name


def _perturbed(tensor: Tensor) -> Tensor:
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
    return tensor + noise * (0.5 if tensor.ndim < 2 else 0.5 * tensor.std())


def test_every_architecture_has_a_variant() -> None:
    named = {variant.architecture for variant in VARIANTS.values()}
    assert named == set(supported_architectures())


def test_a_seed_gives_the_same_checkpoint(tmp_path: Path) -> None:
    variant = VARIANTS["llama-2-like"]
    first, second, other = (
        load_file(variant.make(tmp_path / name, seed=seed) / "model.safetensors")
        for name, seed in (("first", 3), ("second", 3), ("other", 4))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_logits_of_a_bfloat16_checkpoint_are_computed_in_float32(tmp_path: Path) -> None:
    variant = VARIANTS["llama-2-like"]
    path = variant.make(tmp_path, dtype=torch.bfloat16)
    assert load_file(path / "model.safetensors")["lm_head.weight"].dtype == torch.bfloat16
    assert json.loads((path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    (logits,) = variant.reference(path)([[5, 6, 7]])
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())


@pytest.mark.parametrize(
    "name", ["phi-3-mini-128k-like", "phi-3.5-moe-like", "phi-3-small-128k-like"]
)
def test_the_longest_length_chooses_the_table_of_long_rope(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    path = variant.make(tmp_path)
    sequences = token_sequences((20, 30))
    default, within, beyond = (
        variant.reference(path, max_model_len=length)(sequences) for length in (None, 32, 33)
    )
    # The original length is 32, the config's longest 256.
    assert torch.equal(default[0], beyond[0])
    assert not torch.allclose(within[0], beyond[0], atol=1e-3)


def test_the_long_table_is_the_one_that_transformers_takes_beyond_the_original_length(
    tmp_path: Path,
) -> None:
    variant = VARIANTS["phi-3-mini-128k-like"]
    path = variant.make(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    (ids,) = token_sequences((40,))
    with torch.no_grad():
        expected = model.eval()(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(variant.reference(path)([ids])[0], expected, atol=1e-5, rtol=1e-5)


def test_a_longer_length_grows_the_base_of_dynamic_ntk(tmp_path: Path) -> None:
    variant = VARIANTS["qwen-7b-long-like"]
    path = variant.make(tmp_path)
    sequences = token_sequences((12,))
    default, trained, twice = (
        variant.reference(path, max_model_len=length)(sequences)[0] for length in (None, 16, 32)
    )
    assert torch.equal(default, trained)
    assert not torch.allclose(trained, twice, atol=1e-3)


def test_greedy_tokens_continue_a_prompt(tmp_path: Path) -> None:
    oracle = VARIANTS["llama-2-like"].reference(VARIANTS["llama-2-like"].make(tmp_path))
    prompt = token_sequences((5,))[0]
    tokens = oracle.greedy(prompt, 3)
    (logits,) = oracle([prompt + tokens])
    assert logits[4:7].argmax(-1).tolist() == tokens


def test_positions_on_three_axes_change_logits_only_where_they_differ(tmp_path: Path) -> None:
    variant = VARIANTS["qwen2-vl-like"]
    path = variant.make(tmp_path)
    (ids,) = token_sequences((12,))
    embeddings = load_file(path / "model.safetensors")["model.embed_tokens.weight"][ids]
    reference = qwen2_vl.reference_of_inputs(path)
    positions = torch.arange(12).expand(3, 12).clone()
    (expected,) = variant.reference(path)([ids])
    torch.testing.assert_close(reference(embeddings, positions), expected, atol=1e-5, rtol=1e-5)
    for axis in range(3):
        moved = positions.clone()
        moved[axis, 6:] += 3
        logits = reference(embeddings, moved)
        torch.testing.assert_close(logits[:6], expected[:6], atol=1e-5, rtol=1e-5)
        assert not torch.allclose(logits[6:], expected[6:], atol=1e-3)
