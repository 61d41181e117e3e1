"""Packing keeps the values of codes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.random_codes import KINDS, random_codes, shuffled_groups
from taco_kernels.code_layout import CodeLayout
from taco_kernels.code_packing import can_join, join, pack
from taco_kernels.group_codes import CodeKind, GroupCodes
from taco_kernels.packed_codes import E2M1
from taco_kernels.packed_size import packed_bytes


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 9),
    k=st.integers(1, 300),
    group=st.sampled_from([8, 16, 24, 32, 48, 64, 100, 128, 512]),
    extra=st.sampled_from(["", "zero", "zeros", "far zeros", "minima"]),
    order=st.sampled_from(["", "shuffled", "any"]),
    seed=st.integers(0, 2**16),
)
def test_values_are_those_of_the_codes(
    kind: CodeKind, n: int, k: int, group: int, extra: str, order: str, seed: int
) -> None:
    groups = None
    if order == "shuffled":
        groups = shuffled_groups(k, group, seed=seed)
    elif order == "any":
        generator = torch.Generator().manual_seed(seed)
        groups = torch.randint(0, -(-k // group), (k,), generator=generator).int()
    zeros = {"zero": (8, 8), "zeros": (0, 16), "far zeros": (-300, 300)}.get(extra)
    if zeros is not None and kind in ("e4m3", "table16"):
        zeros = None
    codes = random_codes(
        kind,
        n,
        k,
        group,
        zeros=zeros,
        has_minima=extra == "minima",
        group_of_column=groups,
        seed=seed,
    )

    packed = pack(codes)

    if extra == "far zeros":  # which become minima: products that are rounded
        greatest = codes.values().abs().max().item()
        torch.testing.assert_close(packed.values(), codes.values(), atol=1e-3 * greatest, rtol=0)
    else:
        assert torch.equal(packed.values(), codes.values())
    assert packed.n == n
    size = packed_bytes(
        CodeLayout(kind, group, zeros is not None, codes.minima is not None, groups is not None),
        n,
        k,
    )
    kept: list[int] = []

    def note(_: str, tensor: Tensor) -> Tensor:
        kept.append(tensor.nbytes)
        return tensor

    packed.map_tensors(note)
    # Groups of any columns may need a padded tile each; no format writes such groups.
    assert sum(kept) <= size or order == "any"


@pytest.mark.parametrize("has_wide_scales", [False, True])
def test_scales_take_16_bits_where_these_are_exact(has_wide_scales: bool) -> None:
    codes = random_codes("int4", 5, 256, 32, has_minima=True, has_wide_scales=has_wide_scales)
    packed = pack(codes)
    assert torch.equal(packed.values(), codes.values())
    assert packed.scales is not None
    assert packed.scales.dtype == (torch.float32 if has_wide_scales else torch.float16)


def test_scales_of_any_magnitude_are_exact() -> None:
    codes = random_codes("int4", 6, 64, 32)
    factors = torch.tensor([1e-30, 1e-12, 1e-5, 1.0, 1e5, 0.0])
    codes = replace(codes, scales=codes.scales * factors[:, None])
    assert torch.equal(pack(codes).values(), codes.values())


def test_the_table_of_4_bit_floats_needs_no_look_up() -> None:
    codes = replace(random_codes("table16", 5, 64, 32), table=torch.tensor(E2M1))
    packed = pack(codes)
    assert (packed.kind, packed.table) == ("e2m1", None)
    assert torch.equal(packed.values(), codes.values())


@pytest.mark.parametrize("first", [0, -8])
def test_a_table_of_adjacent_integers_needs_no_look_up(first: int) -> None:
    integers = torch.arange(16) + float(first)
    codes = replace(random_codes("table16", 5, 64, 32, has_minima=True), table=integers)
    packed = pack(codes)
    assert (packed.kind, packed.table, packed.zero) == ("int4", None, -first)
    assert torch.equal(packed.values(), codes.values())


@pytest.mark.parametrize(("place", "number"), [(3, 2.0), (0, -1.5), (15, 16.0)])
def test_a_table_of_other_numbers_is_looked_up(place: int, number: float) -> None:
    table = torch.arange(16).float()
    table[place] = number
    codes = replace(random_codes("table16", 5, 64, 32), table=table)
    assert pack(codes).kind == "table16"
    assert torch.equal(pack(codes).values(), codes.values())


def test_rows_of_equal_layouts_are_joined() -> None:
    first = random_codes("int4", 3, 64, 32, zeros=(0, 15))
    second = random_codes("int4", 5, 64, 32, zeros=(0, 15), seed=1)
    assert can_join(first, second)
    wanted = torch.cat([first.values(), second.values()])
    assert torch.equal(join([first, second]).values(), wanted)


@pytest.mark.parametrize(
    "other",
    [
        random_codes("int8", 3, 64, 32),
        random_codes("int4", 3, 64, 64),
        random_codes("int4", 3, 32, 32),
        random_codes("int4", 3, 64, 32, has_minima=True),
        random_codes("int4", 3, 64, 32, group_of_column=shuffled_groups(64, 32)),
    ],
)
def test_rows_of_other_layouts_are_not_joined(other: GroupCodes) -> None:
    assert not can_join(random_codes("int4", 3, 64, 32), other)


def test_tables_and_orders_must_be_equal() -> None:
    table, other = (random_codes("table16", 3, 64, 32, seed=seed) for seed in (0, 1))
    assert can_join(table, replace(other, table=table.table))
    assert not can_join(table, other)
    order, another = (
        random_codes("int4", 3, 64, 32, group_of_column=shuffled_groups(64, 32, seed=seed))
        for seed in (0, 1)
    )
    assert can_join(order, replace(another, group_of_column=order.group_of_column))
    assert not can_join(order, another)
