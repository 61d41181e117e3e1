"""Rotary positions against their reference, keys and values on the way into the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from taco_kernels.kv_format import EIGHT_BIT_DTYPES, greatest, quantize_rows
from taco_kernels.reference.rotary import RotaryStyle, apply_rotary, gather_angles
from taco_kernels.triton import rotary
from taco_kernels.triton.rotary_kv import rotate_and_write_kv

pytestmark = pytest.mark.usefixtures("tensors_on_device")

# bfloat16: the interpreter cuts where the device rounds.
TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"atol": 1e-6, "rtol": 1e-6},
    torch.float16: {"atol": 1e-6, "rtol": 2e-3},
    torch.bfloat16: {"atol": 1e-6, "rtol": 2e-2},
}
HEADS = [(4, 4), (8, 2), (14, 2), (32, 8)]
# (head_dim, rotary_dim)
DIMS = [(64, 64), (80, 80), (96, 96), (128, 32), (80, 20), (256, 256)]
MAX_POSITIONS = 500
EXACTLY: dict[str, Any] = {"atol": 0, "rtol": 0}


def _cos_sin(rotary_dim: int) -> Tensor:
    frequencies = 10_000.0 ** -(torch.arange(rotary_dim // 2) / (rotary_dim // 2))
    angles = torch.outer(torch.arange(MAX_POSITIONS).float(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def _quarter_turns(rotary_dim: int) -> Tensor:
    """A table whose turns are exact: each pair by some multiple of 90 degrees."""
    quarters = torch.randint(0, 4, (MAX_POSITIONS, rotary_dim // 2))
    cos, sin = torch.tensor([1, 0, -1, 0]), torch.tensor([0, 1, 0, -1])
    return torch.cat((cos[quarters], sin[quarters]), dim=1).float()


def _fused(num_tokens: int, heads: tuple[int, int], head_dim: int, dtype: torch.dtype) -> Tensor:
    """What a projection makes: query, key and value heads of a token side by side."""
    num_heads, num_kv_heads = heads
    return torch.randn(num_tokens, num_heads + 2 * num_kv_heads, head_dim).to(dtype)


def _split(fused: Tensor, heads: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = fused.split((heads[0], heads[1], heads[1]), dim=1)
    return query, key, value


def _turned(
    x: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    *,
    offset: int = 0,
    style: RotaryStyle = "half",
    sections: tuple[int, ...] = (),
) -> Tensor:
    cos, sin = gather_angles(cos_sin, positions.long(), sections)
    return apply_rotary(x, cos, sin, offset=offset, style=style)


def _caches(
    num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, num_blocks: int = 12
) -> tuple[Tensor, Tensor, Tensor]:
    """Key and value views of one layer of three, and the memory that they lie in."""
    memory = torch.full((num_blocks, 3, 2, block_size, num_kv_heads, head_dim), torch.nan)
    memory = memory.to(dtype)
    return memory[:, 1, 0], memory[:, 1, 1], memory


def _slots(num_tokens: int, block_size: int, num_blocks: int = 12) -> Tensor:
    return torch.randperm(num_blocks * block_size)[:num_tokens]


@pytest.mark.parametrize(
    ("heads", "dims", "dtype"),
    [
        *((heads, dims, torch.float32) for heads in HEADS for dims in DIMS),
        *(((14, 2), (128, 32), dtype) for dtype in (torch.float16, torch.bfloat16)),
    ],
    ids=str,
)
def test_it_agrees_with_the_reference(
    heads: tuple[int, int], dims: tuple[int, int], dtype: torch.dtype
) -> None:
    head_dim, rotary_dim = dims
    fused = _fused(3, heads, head_dim, dtype)
    before = _split(fused.clone(), heads)
    query, key, value = _split(fused, heads)
    positions, cos_sin = torch.tensor([0, 499, 17], dtype=torch.int32), _cos_sin(rotary_dim)
    key_cache, value_cache, _ = _caches(heads[1], head_dim, 8, dtype)
    slots = _slots(3, 8)
    rotate_and_write_kv(query, key, value, positions, cos_sin, key_cache, value_cache, slots)
    stored = key_cache[slots // 8, slots % 8]
    for turned, original in ((query, before[0]), (stored, before[1])):
        torch.testing.assert_close(
            turned, _turned(original, positions, cos_sin), **TOLERANCES[dtype]
        )
        assert torch.equal(turned[..., rotary_dim:], original[..., rotary_dim:])
    assert torch.equal(value, before[2])
    assert torch.equal(key, before[1])


@pytest.mark.parametrize(
    ("block_size", "dims", "dtype"),
    [
        *((16, dims, torch.float32) for dims in DIMS),
        *((block_size, (80, 20), torch.float16) for block_size in (8, 16, 32)),
        (32, (64, 64), torch.bfloat16),
    ],
    ids=str,
)
def test_keys_and_values_reach_their_slots(
    block_size: int, dims: tuple[int, int], dtype: torch.dtype
) -> None:
    head_dim, rotary_dim = dims
    fused = _fused(5, (8, 2), head_dim, dtype)
    before = fused.clone()
    query, key, value = _split(fused, (8, 2))
    positions, cos_sin = torch.randint(0, MAX_POSITIONS, (5,)), _cos_sin(rotary_dim)
    key_cache, value_cache, memory = _caches(2, head_dim, block_size, dtype)
    slots = _slots(5, block_size)
    slots[3] = -1
    rotate_and_write_kv(query, key, value, positions, cos_sin, key_cache, value_cache, slots)

    torch.testing.assert_close(
        query, _turned(before[:, :8], positions, cos_sin), **TOLERANCES[dtype]
    )
    assert torch.equal(fused[:, 8:], before[:, 8:])
    stored = slots >= 0
    index = (slots[stored] // block_size, slots[stored] % block_size)
    torch.testing.assert_close(
        key_cache[index], _turned(before[:, 8:10], positions, cos_sin)[stored], **TOLERANCES[dtype]
    )
    assert torch.equal(value_cache[index], before[:, 10:][stored])
    assert int((~memory.isnan()).sum()) == 4 * 2 * 2 * head_dim  # and nothing else was written


@pytest.mark.parametrize("offset", [0, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_a_value_that_is_not_finite_makes_its_key_nan(dtype: torch.dtype, offset: int) -> None:
    fused = _fused(4, (6, 3), 56, torch.float32)
    query, key, value = _split(fused, (6, 3))
    value[1, 2, 40] = torch.nan
    key[2, 0, 55] = torch.nan
    positions, cos_sin = torch.randint(0, MAX_POSITIONS, (4,)), _cos_sin(20)
    key_cache, value_cache, _ = _caches(3, 56, 8, torch.float32)
    key_cache, value_cache = key_cache.to(dtype), value_cache.to(dtype)
    scales = torch.ones((*key_cache.shape[:1], 2, *key_cache.shape[1:3]))
    slots = _slots(4, 8)
    options: dict[str, Any] = {"offset": offset}
    if dtype == torch.int8:
        options |= {"key_scale": scales[:, 0], "value_scale": scales[:, 1]}
    rotate_and_write_kv(
        query, key, value, positions, cos_sin, key_cache, value_cache, slots, **options
    )
    index = (slots // 8, slots % 8)
    keys = key_cache[index].float() * scales[:, 0][index].unsqueeze(-1)
    values = value_cache[index].float() * scales[:, 1][index].unsqueeze(-1)
    assert keys[1, 2].isnan().all()
    assert not values[1, 2].any()
    expected = torch.zeros(4, 3, dtype=torch.bool)
    expected[1, 2] = expected[2, 0] = True
    assert torch.equal(keys.isnan().any(-1), expected)
    assert values.isfinite().all()


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("sections", [(), (3, 0, 7), (4, 6)], ids=str)
@pytest.mark.parametrize("offset", [0, 11, 36])
def test_any_part_of_a_head_reaches_the_cache(
    style: RotaryStyle, sections: tuple[int, ...], offset: int
) -> None:
    fused = _fused(4, (6, 3), 56, torch.float32)
    before = fused.clone()
    query, key, value = _split(fused, (6, 3))
    shape = (len(sections), 4) if sections else (4,)
    positions, cos_sin = torch.randint(0, MAX_POSITIONS, shape), _cos_sin(20)
    key_cache, value_cache, memory = _caches(3, 56, 8, torch.float32)
    slots = _slots(4, 8)
    options: dict[str, Any] = {"offset": offset, "style": style, "sections": sections}
    rotate_and_write_kv(
        query, key, value, positions, cos_sin, key_cache, value_cache, slots, **options
    )
    expected = _turned(before, positions, cos_sin, **options)
    torch.testing.assert_close(query, expected[:, :6], **TOLERANCES[torch.float32])
    index = (slots // 8, slots % 8)
    torch.testing.assert_close(key_cache[index], expected[:, 6:9], **TOLERANCES[torch.float32])
    assert torch.equal(value_cache[index], before[:, 9:])
    assert int((~memory.isnan()).sum()) == 4 * 2 * 3 * 56


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_many_tokens(heads: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """More heads share a program then."""
    monkeypatch.setattr(rotary, "_FEW_TOKENS", 5)
    fused = _fused(6, heads, 32, torch.float32)
    before = fused.clone()
    query, key, value = _split(fused, heads)
    positions, cos_sin = torch.arange(6), _cos_sin(32)
    key_cache, value_cache, _ = _caches(heads[1], 32, 8, torch.float32)
    slots = _slots(6, 8)
    rotate_and_write_kv(query, key, value, positions, cos_sin, key_cache, value_cache, slots)
    expected = _turned(before, positions, cos_sin)
    torch.testing.assert_close(query, expected[:, : heads[0]], **TOLERANCES[torch.float32])
    index = (slots // 8, slots % 8)
    torch.testing.assert_close(
        key_cache[index], expected[:, heads[0] : -heads[1]], **TOLERANCES[torch.float32]
    )
    assert torch.equal(value_cache[index], value)


@pytest.mark.parametrize("rotary_dim", [64, 16])
def test_fp8_cache_holds_scaled_numbers(rotary_dim: int) -> None:
    """Of numbers that fp8 has, turned exactly: the interpreter does not round to fp8 rightly."""
    scales: dict[str, Any] = {"key_scale": 0.5, "value_scale": 4.0}
    fused = torch.randint(-15, 16, (4, 8, 64)).to(torch.float8_e4m3fn).half()
    fused[0] *= 1000  # beyond the range of fp8
    before = fused.clone()
    query, key, value = _split(fused, (4, 2))
    positions, cos_sin = torch.randint(0, MAX_POSITIONS, (4,)), _quarter_turns(rotary_dim)
    key_cache, value_cache, _ = _caches(2, 64, 16, torch.float8_e4m3fn)
    slots = _slots(4, 16)
    rotate_and_write_kv(
        query, key, value, positions, cos_sin, key_cache, value_cache, slots, **scales
    )
    turned = _turned(before, positions, cos_sin)
    torch.testing.assert_close(query, turned[:, :4], **EXACTLY)
    for cache, heads, scale in (
        (key_cache, turned[:, 4:6], scales["key_scale"]),
        (value_cache, before[:, 6:], scales["value_scale"]),
    ):
        expected = (heads.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored = cache[slots // 16, slots % 16]
        torch.testing.assert_close(stored.float(), expected.float(), **EXACTLY)


@pytest.mark.parametrize("dtype", EIGHT_BIT_DTYPES)
@pytest.mark.parametrize(("rotary_dim", "offset"), [(64, 0), (16, 0), (16, 20)])
def test_scales_of_tokens(dtype: torch.dtype, rotary_dim: int, offset: int) -> None:
    """A head's scale is that of its greatest number, in whatever part it is."""
    limit = greatest(dtype)
    for place in (0, 18, 25, 50, 63):
        codes = (torch.randn(4, 8, 64) * limit / 8).clamp(-limit, limit)
        codes = (codes.round() if dtype == torch.int8 else codes).to(dtype).float()
        codes[..., place] = limit
        fused = codes * 2.0 ** torch.randint(-9, 5, (4, 8, 1))
        before = fused.clone()
        query, key, value = _split(fused, (4, 2))
        positions, cos_sin = torch.randint(0, MAX_POSITIONS, (4,)), _quarter_turns(rotary_dim)
        key_cache, value_cache, _ = _caches(2, 64, 16, torch.float32)
        stored, scales = [x.to(dtype) for x in (key_cache, value_cache)], torch.ones(12, 2, 16, 2)
        slots = _slots(4, 16)
        rotate_and_write_kv(
            query,
            key,
            value,
            positions,
            cos_sin,
            stored[0],
            stored[1],
            slots,
            offset=offset,
            key_scale=scales[:, 0],
            value_scale=scales[:, 1],
        )
        turned = _turned(before, positions, cos_sin, offset=offset)
        for index, heads in enumerate((turned[:, 4:6], before[:, 6:])):
            expected, expected_scales = quantize_rows(heads, dtype)
            at = slots // 16, slots % 16
            torch.testing.assert_close(stored[index].float()[at], expected.float(), **EXACTLY)
            torch.testing.assert_close(scales[:, index][at], expected_scales)


def test_a_cache_may_have_more_numbers_than_int32_counts() -> None:
    far = 2**31 + 8
    memory = torch.empty(far + 64, dtype=torch.float16)  # hardly any of it is ever touched
    cache = memory.as_strided((2, 8, 1, 8), (far, 8, 8, 1))
    value_cache = torch.empty(2, 8, 1, 8, dtype=torch.float16)
    query, key, value = torch.randn(3, 1, 1, 8).half()
    rotate_and_write_kv(
        query, key, value, torch.tensor([0]), _cos_sin(8), cache, value_cache, torch.tensor([9])
    )
    assert torch.equal(cache[1, 1], key[0])


def test_no_tokens_need_no_launch() -> None:
    query, key = torch.empty(0, 2, 8), torch.empty(0, 1, 8)
    none = torch.empty(0, dtype=torch.int64)
    cache = torch.empty(4, 8, 1, 8)
    rotate_and_write_kv(query, key, key, none, _cos_sin(8), cache, cache, none)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.ones(3, 2, 8).half()}, "key must be .*torch.float16.*torch.float32"),
        ({"query": torch.ones(3, 8, 2).mT}, "query must be .*adjacent"),
        ({"value": torch.ones(3, 2, 8)}, r"the same tokens, heads.*\[3, 1, 8\] and .*\[3, 2, 8\]"),
        ({"value": torch.ones(3, 1, 16)[..., ::2]}, "the numbers of a head must be adjacent"),
        ({"positions": torch.zeros(3)}, r"positions must be .*\[3\].* not torch.float32"),
        ({"cos_sin": torch.ones(9, 10)}, r"cos_sin must be .*at most 8.*\[9, 10\]"),
        ({"value_cache": torch.ones(4, 8, 1, 8).half()}, r"value_cache must be torch\.float32 or"),
        ({"value_cache": torch.ones(4, 16, 1, 8)}, "of the same blocks, heads and dtype"),
        ({"key_cache": torch.ones(4, 8, 2, 8)}, r"key_cache must be .*not \[4, 8, 2, 8\]"),
        ({"kv_slot_mapping": torch.zeros(2)}, r"kv_slot_mapping must be contiguous int64 \[3\]"),
    ],
)
def test_error_names_the_mismatch(change: dict[str, Tensor], message: str) -> None:
    arguments: dict[str, Any] = {
        "query": torch.ones(3, 2, 8),
        "key": torch.ones(3, 1, 8),
        "value": torch.ones(3, 1, 8),
        "positions": torch.zeros(3, dtype=torch.int32),
        "cos_sin": torch.ones(9, 8),
        "key_cache": torch.ones(4, 8, 1, 8),
        "value_cache": torch.ones(4, 8, 1, 8),
        "kv_slot_mapping": torch.zeros(3, dtype=torch.int64),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        rotate_and_write_kv(**arguments)
