"""Input embeddings and positions on three axes, with Qwen2-VL's text part as the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.architectures.qwen2_vl import INPUT_FIELDS, reference_of_inputs
from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.draft_trees import Tree, TreeRunner, chain
from support.mixed_batches import (
    TOLERANCE,
    assert_bits_are_a_sequences_own,
    assert_close,
    in_chunks,
)
from support.models import load_step_model
from support.paged import GivenTokens, PagedRunner
from support.plans import ints
from taco_worker.models.step_model import InputEmbeddings, ModelInput, StepModel

BLOCK_SIZE = 16
QWEN_2_VL = VARIANTS["qwen2-vl-like"]
both_back_ends = pytest.mark.parametrize("serves", ["kernels", "torch"])
Reference = Callable[[Tensor, Tensor], Tensor]
# A prompt: a number is that many words, a tuple the frames, rows and columns of an image or video.
Layout = tuple[int | tuple[int, int, int], ...]
PROMPTS: dict[str, Layout] = {
    "image": (5, (1, 4, 5), 12),
    "video": ((2, 3, 3), 1),
    "text": (21,),
    "images": (2, (1, 2, 3), 1, (1, 5, 2), 10),
}


def _positions(layout: Layout) -> Tensor:
    """[3, n] as Qwen2-VL, section 2.1: a part begins behind the greatest position before it."""
    parts: list[Tensor] = []
    begin = 0
    for part in layout:
        parts.append(begin + _grid(part))
        begin = int(parts[-1].max()) + 1
    return torch.cat(parts, dim=1)


def _grid(part: int | tuple[int, int, int]) -> Tensor:
    """The axes of a part from 0 on: those of words are equal."""
    if isinstance(part, int):
        return torch.arange(part).expand(3, part)
    axes = torch.meshgrid(*map(torch.arange, part), indexing="ij")
    return torch.stack(axes).flatten(1)


def _is_patch(layout: Layout) -> Tensor:
    counts = [part if isinstance(part, int) else int(np.prod(part)) for part in layout]
    kinds = torch.tensor([not isinstance(part, int) for part in layout])
    return kinds.repeat_interleave(torch.tensor(counts))


class Prompts:
    """Prompts with token ids, which patches do not use, and their embeddings and positions."""

    def __init__(self, model: StepModel, layouts: Mapping[str, Layout] = PROMPTS) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids: dict[str, list[int]] = {}
        self.given: dict[str, GivenTokens] = {}
        for seed, (name, layout) in enumerate(layouts.items()):
            positions, is_patch = _positions(layout), _is_patch(layout)
            (ids,) = token_sequences((is_patch.numel(),), seed=seed)
            embeddings = model.embed(torch.tensor(ids)).clone()
            patches = torch.randn(embeddings.shape, generator=generator).to(embeddings.dtype)
            embeddings[is_patch] = patches[is_patch]
            self.ids[name] = ids
            self.given[name] = GivenTokens(positions, embeddings, is_patch)

    def expected(self, reference: Reference) -> dict[str, Tensor]:
        return {
            name: reference(given.embeddings, given.rope_positions)
            for name, given in self.given.items()
        }


@pytest.fixture(scope="module", params=[v for v in VARIANTS if v.startswith("qwen2") and "vl" in v])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return VARIANTS[request.param].make(tmp_path_factory.mktemp("model") / "checkpoint")


@both_back_ends
def test_logits_of_a_mixed_batch(path: Path, serves: str) -> None:
    """Chunks end inside of images, beside prompts without any."""
    model = load_step_model(path, serves)
    prompts = Prompts(model)
    expected = prompts.expected(reference_of_inputs(path))
    assert_close(PagedRunner(model).step(prompts.ids, prompts.given), expected)
    assert_close(in_chunks(PagedRunner(model), prompts.ids, given=prompts.given), expected)


@both_back_ends
def test_tokens_after_an_image(path: Path, serves: str) -> None:
    """Words have equal positions on all axes, which are not those of their KV."""
    model = load_step_model(path, serves)
    prompts = Prompts(model, {"image": PROMPTS["image"]})
    given = prompts.given["image"]
    runner, reference = PagedRunner(model), reference_of_inputs(path)
    logits = runner.step(prompts.ids, prompts.given)["image"][-1]
    embeddings, positions = given.embeddings, given.rope_positions
    for _ in range(6):
        ids = [int(logits.argmax())]
        word = GivenTokens(
            positions[:, -1:] + 1, model.embed(torch.tensor(ids)), torch.tensor([False])
        )
        assert int(word.rope_positions[0, 0]) != positions.shape[1]
        embeddings = torch.cat([embeddings, word.embeddings])
        positions = torch.cat([positions, word.rope_positions], dim=1)
        logits = runner.step({"image": ids}, {"image": word})["image"][-1]
        torch.testing.assert_close(
            logits, reference(embeddings, positions)[-1], atol=TOLERANCE, rtol=0
        )


@both_back_ends
def test_sequences_share_a_prefix_with_an_image(path: Path, serves: str) -> None:
    model = load_step_model(path, serves)
    prompts = Prompts(model, {"a": PROMPTS["image"]})
    (other,) = token_sequences((5,), seed=9)
    runner = PagedRunner(model, block_size=BLOCK_SIZE)
    runner.step(prompts.ids, prompts.given)
    runner.share_prefix("b", "a", 2)
    given = prompts.given["a"]
    embeddings = torch.cat([given.embeddings[:32], model.embed(torch.tensor(other))])
    suffix = GivenTokens(
        given.rope_positions[:, 32:37], embeddings[32:], torch.zeros(5, dtype=torch.bool)
    )
    actual = runner.step({"b": other}, {"b": suffix})["b"]
    expected = reference_of_inputs(path)(embeddings, given.rope_positions[:, :37])
    torch.testing.assert_close(actual, expected[32:], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "quantization"), [("float32", None), ("bfloat16", None), ("bfloat16", "int8")]
)
def test_bits_do_not_depend_on_neighbours_and_chunks(
    path: Path, dtype: str, quantization: str | None
) -> None:
    prompts = Prompts(load_step_model(path, "kernels", dtype=dtype, quantization=quantization))
    assert_bits_are_a_sequences_own(path, dtype, quantization, prompts.ids, prompts.given)


@both_back_ends
@pytest.mark.parametrize(("field", "value"), INPUT_FIELDS, ids=str)
def test_each_field_is_followed(field: str, value: Any, serves: str, tmp_path: Path) -> None:
    path = QWEN_2_VL.make(tmp_path / "model", **{field: value})
    model = load_step_model(path, serves)
    prompts = Prompts(model)
    expected = prompts.expected(reference_of_inputs(path))
    assert_close(PagedRunner(model).step(prompts.ids, prompts.given), expected)


@both_back_ends
def test_equal_axes_have_the_bits_of_plain_positions(path: Path, serves: str) -> None:
    model = load_step_model(path, serves)
    (ids,) = token_sequences((40,))
    words = Prompts(model, {"a": (40,)}).given
    expected = PagedRunner(model).step({"a": ids})["a"]
    assert torch.equal(PagedRunner(model).step({"a": ids}, words)["a"], expected)


# Packed tied heads, scales, norms, projections and learned positions behind the embedding.
EMBEDDINGS = (
    "llama-3.2-like",
    "gemma-2-like",
    "granite-like",
    "bloom-like",
    "gpt2-like",
    "opt-350m-like",
    "deepseek-v3-like",
)


@both_back_ends
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_rows_of_the_table_have_the_bits_of_their_ids(
    name: str, dtype: str, serves: str, tmp_path: Path
) -> None:
    model = load_step_model(VARIANTS[name].make(tmp_path / "model"), serves, dtype=dtype)
    ids, other = token_sequences((30, 7))
    is_given = torch.arange(30) % 3 > 0
    blank = torch.tensor(ids).masked_fill(is_given, 5).tolist()
    rows = model.embed(torch.tensor(ids))[is_given].clone()
    given = InputEmbeddings(is_given.nonzero()[:, 0].int().numpy(), rows)
    forward = model.forward
    expected = PagedRunner(model).step({"a": ids, "b": other})
    model.forward = lambda inputs: forward(replace(inputs, embeddings=given))  # type: ignore[method-assign]
    actual = PagedRunner(model).step({"a": blank, "b": other})
    assert torch.equal(actual["a"], expected["a"])
    assert torch.equal(actual["b"], expected["b"])


@both_back_ends
def test_draft_trees_turn_by_their_rope_positions(path: Path, serves: str) -> None:
    model = load_step_model(path, serves)
    forward, reference = model.forward, reference_of_inputs(path)
    speeds = ints([1, 2, 3])[:, None]

    def turned(inputs: ModelInput) -> Tensor:
        return forward(replace(inputs, rope_positions=inputs.positions * speeds))

    def assert_last(hidden: Tensor, ids: list[int]) -> None:
        positions = torch.arange(len(ids)) * torch.from_numpy(speeds)
        expected = reference(model.embed(torch.tensor(ids)), positions)[-1:]
        actual = model.compute_logits(hidden[None])
        torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)

    model.forward = turned  # type: ignore[method-assign]
    (prompt,) = token_sequences((20,))
    tree = Tree([7, 8, 9, 10, 11], [-1, 0, 1, 0, 3])
    runner = TreeRunner(model)
    runner.step({"a": chain(prompt)})
    hidden = runner.step_and_keep({"a": tree}, {"a": 4})["a"]
    for node in range(5):
        assert_last(hidden[node], [*prompt, *tree.ids_to(node)])
    assert_last(runner.step({"a": chain([12])})[0], [*prompt, *tree.ids_to(4), 12])


NUM_TOKENS, MAX_MODEL_LEN = 4, 64


def _rows(*tokens: int, size: int = 72, dtype: torch.dtype = torch.float32) -> InputEmbeddings:
    return InputEmbeddings(ints(tokens), torch.zeros((len(tokens), size), dtype=dtype))


def _axes(*shape: int, value: int = 0, dtype: type[np.signedinteger[Any]] = np.int32) -> Any:
    return np.full(shape, value, dtype=dtype)


@both_back_ends
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"embeddings": _rows(1, 1)}, r"ascending int32 from 0 to 3, not int32 \[1, 1\]"),
        ({"embeddings": _rows(2, 4)}, r"ascending int32 from 0 to 3, not int32 \[2, 4\]"),
        ({"embeddings": _rows(-1)}, r"ascending int32 from 0 to 3, not int32 \[-1\]"),
        ({"embeddings": _rows(0, size=71)}, r"float32 \[1, 72\] on cpu, not float32 \[1, 71\]"),
        (
            {"embeddings": _rows(0, dtype=torch.float64)},
            r"float32 \[1, 72\] on cpu, not float64 \[1, 72\]",
        ),
        (
            {"embeddings": InputEmbeddings(ints([0, 1]), torch.zeros((72, 2)).T)},
            r"contiguous float32 \[2, 72\] .* with strides \(1, 2\)",
        ),
        ({"rope_positions": _axes(2, 4)}, r"must be int32 \[3, 4\], not int32 \[2, 4\]"),
        ({"rope_positions": _axes(3, 5)}, r"must be int32 \[3, 4\], not int32 \[3, 5\]"),
        ({"rope_positions": _axes(4)}, r"must be int32 \[3, 4\], not int32 \[4\]"),
        (
            {"rope_positions": _axes(3, 4, dtype=np.int64)},
            r"must be int32 \[3, 4\], not int64 \[3, 4\]",
        ),
        ({"rope_positions": _axes(3, 4, value=64)}, "must be from 0 to 63, not 64"),
        ({"rope_positions": _axes(3, 4, value=-1)}, "must be from 0 to 63, not -1"),
    ],
    ids=str,
)
def test_bad_inputs_are_named(
    given: dict[str, Any], message: str, serves: str, tmp_path: Path
) -> None:
    model = load_step_model(QWEN_2_VL.make(tmp_path / "model"), serves)
    _assert_refused(model, given, message)


@both_back_ends
def test_models_without_sections_have_no_rope_positions(serves: str, tmp_path: Path) -> None:
    model = load_step_model(VARIANTS["qwen2-like"].make(tmp_path / "model"), serves)
    given = {"rope_positions": _axes(3, 4)}
    _assert_refused(model, given, "Qwen2ForCausalLM has no M-RoPE: rope_positions do not apply")


def _assert_refused(model: StepModel, given: dict[str, Any], message: str) -> None:
    model.allocate_kv(4, BLOCK_SIZE, MAX_MODEL_LEN)
    step = ModelInput(
        token_ids=torch.tensor([5, 6, 7, 8], dtype=torch.int32),
        positions=ints(range(NUM_TOKENS)),
        query_start=ints([0, NUM_TOKENS]),
        seq_lens=ints([NUM_TOKENS]),
        block_tables=np.zeros((1, 1), dtype=np.int32),
        output_rows=ints([3]),
    )
    with pytest.raises(ValueError, match=message) as error:
        model.forward(replace(step, **given))
    assert "\n" not in str(error.value)
