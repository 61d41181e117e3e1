"""Storing keys and values in the paged cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.triton_interpreter import DEVICE
from taco_kernels.kv_format import EIGHT_BIT_DTYPES, quantize_rows
from taco_kernels.triton.kv_write import write_kv

FP8 = torch.float8_e4m3fn
SLOTS = (37, -1, 0, 16, 23)


def fused(num_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values as views of one projection, behind queries."""
    rows = torch.randn(len(SLOTS), 4 + 2 * num_heads, head_dim).to(DEVICE, dtype)
    return rows[:, 4 : 4 + num_heads], rows[:, 4 + num_heads :]


def poisoned_caches(
    block_size: int, num_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    memory = torch.full((6, 3, 2, block_size, num_heads, head_dim), torch.nan).to(dtype).to(DEVICE)
    return memory[:, 1, 0], memory[:, 1, 1]


def check(cache: Tensor, rows: Tensor, block_size: int) -> None:
    """Assert that values are in their slots and nothing else was written."""
    cache, rows = cache.cpu().float(), rows.cpu().float()
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            stored = cache[slot // block_size, slot % block_size]
            assert torch.equal(stored, rows[token])
            stored.fill_(torch.nan)
    assert cache.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("block_size", "num_heads", "head_dim"), [(8, 2, 64), (16, 3, 80), (32, 1, 128)]
)
def test_write(block_size: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    key, value = fused(num_heads, head_dim, dtype)
    key_cache, value_cache = poisoned_caches(block_size, num_heads, head_dim, dtype)
    write_kv(key, value, key_cache, value_cache, torch.tensor(SLOTS, device=DEVICE))
    check(key_cache, key, block_size)
    check(value_cache, value, block_size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_keys_and_values_of_different_sizes(dtype: torch.dtype) -> None:
    key, value = fused(2, 80, dtype)[0], fused(2, 48, dtype)[1]
    key_cache, value_cache = (
        poisoned_caches(16, 2, 80, dtype)[0],
        poisoned_caches(16, 2, 48, dtype)[1],
    )
    write_kv(key, value, key_cache, value_cache, torch.tensor(SLOTS, device=DEVICE))
    check(key_cache, key, 16)
    check(value_cache, value, 16)


def test_a_latent_is_written_once() -> None:
    key, _ = fused(1, 80, torch.float16)
    key_cache, _ = poisoned_caches(16, 1, 80, torch.float16)
    slots = torch.tensor(SLOTS, device=DEVICE)
    write_kv(key, None, key_cache, key_cache[..., :64], slots)
    check(key_cache, key, 16)


def test_fp8_is_scaled_and_held_within_its_range() -> None:
    rows = [100 * x for x in fused(2, 64, torch.float32)]
    if DEVICE.type == "cpu":
        # The interpreter does not round to float8, so it is given what needs no rounding.
        rows = [x.clamp(-448, 448).to(FP8).float() for x in rows]
    scales = (0.25, 2.0)
    key, value = (x * scale for x, scale in zip(rows, scales, strict=True))
    rows[0][0, 0, :2] = torch.tensor([448.0, -448.0])
    key[0, 0, :2] = torch.tensor([1000.0, -torch.inf])
    key_cache, value_cache = poisoned_caches(16, 2, 64, FP8)
    slots = torch.tensor(SLOTS, device=DEVICE)
    write_kv(key, value, key_cache, value_cache, slots, key_scale=scales[0], value_scale=scales[1])
    check(key_cache, rows[0].clamp(-448, 448).to(FP8), 16)
    check(value_cache, rows[1].clamp(-448, 448).to(FP8), 16)


@pytest.mark.parametrize("dtype", EIGHT_BIT_DTYPES)
@pytest.mark.parametrize("is_latent", [False, True])
def test_scales_of_tokens(dtype: torch.dtype, is_latent: bool) -> None:
    rows = list(fused(2, 80, torch.float32))
    if DEVICE.type == "cpu" and dtype != torch.int8:
        # The interpreter does not round to float8, so it is given what needs no rounding.
        rows = [scaled_exactly(x, dtype) for x in rows]
    rows[0][2, 1] = 0
    key, value = rows
    key_cache, value_cache = poisoned_caches(16, 2, 80, torch.float32)
    stored = [cache.to(dtype) for cache in (key_cache, value_cache)]
    scales = torch.full((6, 2, 16, 2), torch.nan, device=DEVICE)
    slots = torch.tensor(SLOTS, device=DEVICE)
    write_kv(
        key,
        None if is_latent else value,
        stored[0],
        stored[0][..., :64] if is_latent else stored[1],
        slots,
        key_scale=scales[:, 0],
        value_scale=scales[:, 0 if is_latent else 1],
    )
    for index in range(1 if is_latent else 2):
        expected, expected_scales = quantize_rows(rows[index].cpu(), dtype)
        for token, slot in enumerate(SLOTS):
            if slot >= 0:
                at = slot // 16, slot % 16
                assert torch.equal(stored[index][at].cpu().float(), expected[token].float())
                torch.testing.assert_close(scales[:, index][at].cpu(), expected_scales[token])
    num_written = int((~scales.isnan()).sum())
    assert num_written == sum(slot >= 0 for slot in SLOTS) * 2 * (1 if is_latent else 2)


@pytest.mark.parametrize("number", [torch.nan, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_a_value_that_is_not_finite_makes_its_key_nan(dtype: torch.dtype, number: float) -> None:
    """Of its head and token alone; it is stored as zeros."""
    key, value = fused(2, 64, torch.float16)
    value[2, 1, 5] = number
    caches = [cache.to(dtype) for cache in poisoned_caches(16, 2, 64, torch.float16)]
    scales = torch.ones((6, 2, 16, 2), device=DEVICE)
    options = {"key_scale": scales[:, 0], "value_scale": scales[:, 1]}
    slots = torch.tensor(SLOTS, device=DEVICE)
    write_kv(key, value, caches[0], caches[1], slots, **(options if dtype == torch.int8 else {}))
    at = slots[2:] // 16, slots[2:] % 16
    keys, values = (
        cache[at].float() * scales[:, index][at].unsqueeze(-1) for index, cache in enumerate(caches)
    )
    assert keys.isnan().any(-1).tolist() == [[False, True], [False, False], [False, False]]
    assert keys[0, 1].isnan().all()
    assert values.isfinite().all()
    assert not values[0, 1].any()


@pytest.mark.parametrize("dtype", EIGHT_BIT_DTYPES)
def test_the_scale_of_a_key_with_nan_is_nan(dtype: torch.dtype) -> None:
    key, value = fused(2, 64, torch.float32)
    key[2, 1, 5] = torch.nan
    caches = [cache.to(dtype) for cache in poisoned_caches(16, 2, 64, torch.float32)]
    scales = torch.zeros((6, 2, 16, 2), device=DEVICE)
    slots = torch.tensor(SLOTS, device=DEVICE)
    write_kv(
        key,
        value,
        caches[0],
        caches[1],
        slots,
        key_scale=scales[:, 0],
        value_scale=scales[:, 1],
    )
    assert scales[0, :, 0].isnan().tolist() == [[False, True], [False, False]]


def scaled_exactly(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows whose scales are powers of two and whose numbers the dtype holds."""
    limit = torch.finfo(dtype).max
    codes = (rows * limit / 8).clamp(-limit, limit).to(dtype).float()
    codes[..., 3] = limit
    return codes * 2.0 ** torch.randint(-9, 5, rows.shape[:2]).unsqueeze(-1).to(rows.device)


def test_nothing_to_do() -> None:
    key, value = fused(2, 64, torch.float16)
    key_cache, value_cache = poisoned_caches(16, 2, 64, torch.float16)
    slots = torch.tensor(SLOTS, device=DEVICE)
    write_kv(key[:0], value[:0], key_cache, value_cache, slots[:0])
    assert key_cache.isnan().all()


def test_bad_input() -> None:
    key, value = fused(2, 64, torch.float16)
    key_cache, value_cache = poisoned_caches(16, 2, 64, torch.float16)
    slots = torch.tensor(SLOTS, device=DEVICE)
    with pytest.raises(ValueError, match="the same tokens, heads and dtype"):
        write_kv(key, value.float(), key_cache, value_cache, slots)
    with pytest.raises(ValueError, match=r"key_cache must be \[num_blocks, block_size, 2, 64\]"):
        write_kv(key, value, key_cache[..., :32], value_cache, slots)
    with pytest.raises(ValueError, match=r"value_cache must be torch\.float16 or of 8 bits"):
        write_kv(key, value, key_cache, value_cache.float(), slots)
    with pytest.raises(ValueError, match="the same blocks, heads and dtype"):
        write_kv(key, value, key_cache, value_cache[:2], slots)
    scales = torch.ones(6, 16, 2, device=DEVICE)
    for wrong in ({"key_scale": scales}, {"key_scale": scales, "value_scale": scales[:, :8]}):
        with pytest.raises(
            ValueError, match=r"scales of tokens must be two of float32 \[6, 16, 2\]"
        ):
            write_kv(key, value, key_cache.to(FP8), value_cache.to(FP8), slots, **wrong)
    with pytest.raises(ValueError, match="adjacent"):
        write_kv(key.mT.contiguous().mT, value, key_cache, value_cache, slots)
    with pytest.raises(ValueError, match=r"kv_slot_mapping must be contiguous int64 \[5\]"):
        write_kv(key, value, key_cache, value_cache, slots.int())
