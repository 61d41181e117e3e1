"""The cost model: its predictions on links that one can compute by hand, and what it chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.link_costs import costs
from taco_train.lightcc.cost_model import (
    Buffer,
    Choice,
    Format,
    Line,
    Plan,
    allowed_plans,
    choose,
    predict,
)
from taco_train.lightcc.settings import Settings

MIB = 1 << 20
FLAT, TWO_LEVEL = Plan(two_level=False), Plan(two_level=True)
FLAT16, TWO_LEVEL16 = Plan(False, Format.FLOAT16), Plan(True, Format.FLOAT16)
FLAT_BF16, TWO_LEVEL_BF16 = Plan(False, Format.BFLOAT16), Plan(True, Format.BFLOAT16)
TOP_K, FLAT_TOP_K = Plan(True, Format.TOP_K), Plan(False, Format.TOP_K)
AUTO = Settings(compression="auto")


def test_slow_link_counts_bytes() -> None:
    """At 200 Mbit/s the bytes that leave a host matter: 1.5, 1 and 1/2 times the buffer."""
    slow, num_bytes = costs(200, latency=0), 32 * MIB
    wire, memory = num_bytes * 8 / 200e6, slow.memory.seconds(num_bytes)
    converted = slow.convert_per_byte * num_bytes
    assert predict(FLAT, num_bytes, slow, AUTO) == pytest.approx(1.5 * wire)
    assert predict(FLAT16, num_bytes, slow, AUTO) == pytest.approx(0.75 * wire + 2 * converted)
    assert predict(TWO_LEVEL, num_bytes, slow, AUTO) == pytest.approx(wire + memory)
    half = wire / 2 + memory + converted / 2  # a rank converts its half
    assert predict(TWO_LEVEL16, num_bytes, slow, AUTO) == pytest.approx(half)
    top_k = 0.01 / 4 * 5 * wire + memory + slow.top_k.seconds(num_bytes / 2)
    assert predict(TOP_K, num_bytes, slow, AUTO) == pytest.approx(top_k)


def test_small_buffers_count_messages() -> None:
    """Ring of 4 ranks: 6 messages; two levels: 1 up to 16 KiB, 2 above."""
    fast = costs(1e6, latency=1e-3)
    assert predict(FLAT, 1024, fast, AUTO) == pytest.approx(6e-3, rel=0.01)
    assert predict(TWO_LEVEL, 1024, fast, AUTO) == pytest.approx(1e-3, rel=0.03)
    assert predict(TWO_LEVEL, 32 << 10, fast, AUTO) == pytest.approx(2e-3, rel=0.03)


def test_one_host_is_shared_memory() -> None:
    one = costs(200, hosts=1, ranks=4)
    assert predict(FLAT, MIB, one, AUTO) == one.memory.seconds(MIB)
    assert choose(Buffer(64 * MIB), one, AUTO).plan.format is Format.DENSE


@pytest.mark.parametrize(
    ("megabits", "num_bytes", "plan"),
    [
        (50, 64 * MIB, TOP_K),
        (50, MIB - 1, TWO_LEVEL16),  # below LIGHT_TOPK_THRESHOLD
        (50, 16, TWO_LEVEL),  # bytes do not matter: exact
        (100_000, 64 * MIB, FLAT),  # sockets are as fast as memory: compression saves little
    ],
)
def test_choice_by_link(megabits: float, num_bytes: int, plan: Plan) -> None:
    assert choose(Buffer(num_bytes), costs(megabits), AUTO).plan == plan


def test_a_ring_where_messages_of_many_hosts_collide() -> None:
    collide = replace(costs(1000, hosts=4, ranks=1, latency=1e-6), hosts=Line(1e-6, 1e-8))
    assert choose(Buffer(8 * MIB), collide, Settings()).plan == FLAT


@pytest.mark.parametrize(
    ("settings", "num_bytes", "plans"),
    [
        (Settings(), 4, {FLAT, TWO_LEVEL}),
        (Settings(two_level=True), 4, {TWO_LEVEL}),
        (Settings(two_level=False), 4, {FLAT}),
        (Settings(two_level_max_bytes=3), 4, {FLAT}),
        (Settings(two_level=True, two_level_max_bytes=3), 4, {FLAT}),
        (Settings(two_level=True, two_level_max_bytes=4), 4, {TWO_LEVEL}),
        (Settings(compression="fp16"), 4, {FLAT16, TWO_LEVEL16}),
        (Settings(compression="bf16"), 4, {FLAT_BF16, TWO_LEVEL_BF16}),
        (Settings(top_k=True), 2 * MIB, {TOP_K, FLAT_TOP_K}),
        (Settings(top_k=True), MIB - 1, {FLAT, TWO_LEVEL}),
        (Settings(top_k=True, two_level=True, top_k_min_bytes=0), 4, {TOP_K}),
        (Settings(top_k=True, compression="fp16"), MIB - 1, {FLAT16, TWO_LEVEL16}),
        (AUTO, 2 * MIB, {FLAT, TWO_LEVEL, FLAT16, TWO_LEVEL16, TOP_K, FLAT_TOP_K}),
        (AUTO, MIB - 1, {FLAT, TWO_LEVEL, FLAT16, TWO_LEVEL16}),
        (replace(AUTO, top_k=False), 2 * MIB, {FLAT, TWO_LEVEL, FLAT16, TWO_LEVEL16}),
        (replace(AUTO, two_level=True), 2 * MIB, {TWO_LEVEL, TWO_LEVEL16, TOP_K}),
    ],
)
def test_settings_win(settings: Settings, num_bytes: int, plans: set[Plan]) -> None:
    assert set(allowed_plans(Buffer(num_bytes), settings)) == plans


def test_only_float32_sums_are_compressed() -> None:
    settings = Settings(top_k=True, compression="fp16")
    plans = allowed_plans(Buffer(8 * MIB, is_float32_sum=False), settings)
    assert set(plans) == {FLAT, TWO_LEVEL}


@given(
    megabits=st.floats(10, 1e5),
    latency=st.floats(1e-6, 0.05),
    hosts=st.integers(1, 8),
    ranks=st.integers(1, 8),
    num_bytes=st.integers(0, 1 << 28),
)
def test_choice_is_the_fastest_but_for_compression_without_gain(
    megabits: float, latency: float, hosts: int, ranks: int, num_bytes: int
) -> None:
    choice = choose(
        Buffer(num_bytes), costs(megabits, latency=latency, hosts=hosts, ranks=ranks), AUTO
    )
    best = min(choice.seconds.values())
    assert choice.seconds[choice.plan] <= 1.03 * best
    if choice.plan.format is not Format.DENSE:
        exact = [s for plan, s in choice.seconds.items() if plan.format is Format.DENSE]
        assert min(exact) > 1.03 * best


@given(num_bytes=st.integers(0, 1 << 27), more=st.integers(0, 1 << 20), megabits=st.floats(10, 1e5))
def test_more_bytes_never_take_less_within_a_form(
    num_bytes: int, more: int, megabits: float
) -> None:
    link = costs(megabits)
    for plan in (FLAT, FLAT16):
        assert predict(plan, num_bytes, link, AUTO) <= predict(plan, num_bytes + more, link, AUTO)


def test_choice_reads_as_a_log_line() -> None:
    choice = Choice(TWO_LEVEL16, {FLAT: 0.0352, TWO_LEVEL16: 0.0121, TWO_LEVEL: 0.023})
    assert str(choice) == "2D + fp16 (predicted: 2D + fp16 12.1 ms, 2D 23 ms, flat 35.2 ms)"
