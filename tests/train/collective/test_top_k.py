"""Top-k: the codec alone, and all-reduces that send only the largest values between hosts."""

import contextlib
import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.communicators import communicator, digest, own_rank, values
from support.train_processes import RankPool
from taco_train.collective import library
from taco_train.collective.library import Code, Report
from taco_train.collective.wire import TopK


class DamagedError(Exception):
    """The library found a message damaged."""


def encode(tensor: Tensor, selected: int, *, as_float16: bool) -> bytes:
    """Takes the largest values out of the tensor."""
    lib = library.load()
    capacity = lib.taco_collective_encoded_capacity(tensor.numel(), selected, as_float16)
    out = ctypes.create_string_buffer(capacity)
    length = lib.taco_collective_encode(
        tensor.data_ptr(), None, tensor.numel(), selected, as_float16, out
    )
    assert length <= capacity
    return out.raw[:length]


def decode(data: bytes, count: int, *, as_float16: bool) -> Tensor:
    out, report = torch.zeros(count), Report()
    code = library.load().taco_collective_decode(
        data, len(data), count, as_float16, out.data_ptr(), ctypes.byref(report)
    )
    if code != Code.OK:
        raise DamagedError(report.message.decode())
    return out


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 20_000),
    share=st.floats(0, 1),
    levels=st.sampled_from([0, 1, 3]),
    as_float16=st.booleans(),
    seed=st.integers(0, 999),
)
def test_what_is_sent_and_what_remains_add_up(
    count: int, share: float, levels: int, as_float16: bool, seed: int
) -> None:
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 1000
    if levels:  # many equal magnitudes
        tensor = (tensor / 1000 * levels).round()
    before, selected = tensor.clone(), round(share * count)
    sent = decode(encode(tensor, selected, as_float16=as_float16), count, as_float16=as_float16)
    assert torch.equal(sent.double() + tensor.double(), before.double())
    # The first of the largest: a stable sort gives the same ones.
    order = np.argsort(-before.abs().numpy(), kind="stable")[:selected]
    expected = torch.zeros(count)
    expected[order] = before[order]
    if not as_float16:
        assert torch.equal(sent, expected)
    assert torch.equal(tensor == before, expected == 0) or as_float16
    assert ((sent != 0) <= (expected != 0)).all()


def test_values_beyond_float16_stay_in_the_residual() -> None:
    tensor = torch.tensor([1e6, -2e5, 1.0, float("inf"), float("nan")])
    sent = decode(encode(tensor, 4, as_float16=True), 5, as_float16=True)
    assert sent[:4].tolist() == [65504.0, -65504.0, 0.0, float("inf")]
    assert sent[4].isnan()
    assert tensor.tolist() == [1e6 - 65504, -2e5 + 65504, 1.0, 0.0, 0.0]


def test_indices_of_one_percent_take_about_a_byte_each() -> None:
    count = 1_000_000
    data = encode(torch.randn(count), count // 100, as_float16=False)
    assert 4 + 1.05 < len(data) / (count // 100) < 4 + 1.1


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=60), count=st.integers(1, 50), as_float16=st.booleans())
def test_damaged_messages_are_an_error(data: bytes, count: int, as_float16: bool) -> None:
    whole = encode(torch.arange(1.0, 51.0), 20, as_float16=as_float16)
    for damaged in (data, whole[:-1], whole[:8] + data + whole[8 + len(data) :]):
        # By chance a message may be whole.
        with contextlib.suppress(DamagedError):
            assert decode(damaged, count, as_float16=as_float16).numel() == count
    with pytest.raises(DamagedError, match="wrong length"):
        decode(whole[:-1], 50, as_float16=as_float16)


def one_step(
    hosts: str, count: int, depth: int, values_type: str, momentum: float
) -> tuple[str, float]:
    """Several steps; the sum of all results and residuals is that of all gradients."""
    if own_rank() >= len(hosts):
        return "", 0.0
    ranks = communicator(hosts)
    key = f"{count}/{depth}/{values_type}/{momentum}"
    wire = TopK(key, ratio=0.05, values=values_type, momentum=momentum)
    # Halves of small integers add up exactly.
    gradients = [
        (values(rank, (count,), torch.float32, "sum") * 64).round() / 2
        for rank in range(len(hosts))
    ]
    received = torch.zeros(count)
    for _ in range(4):
        tensor = gradients[own_rank()].clone()
        ranks.all_reduce(tensor, wire=wire, depth=depth)
        received += tensor
    left = torch.zeros(count)
    state = ranks.residuals.state_dict()[key]
    assert state["step"] == 4
    left[state["begin"] : state["end"]] = state["values"]
    ranks.all_reduce(left, depth=depth)
    total = torch.stack(gradients).sum(0)
    if momentum == 0:
        assert torch.equal(received + left, 4 * total)
    return digest(received), (received != 0).float().mean().item()


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("values_type", ["float32", "float16"])
@pytest.mark.parametrize(
    ("hosts", "depth"), [("aabb", 2), ("aaabb", 2), ("abc", 2), ("aabb", 1), ("abcd", 3)]
)
def test_nothing_is_lost_between_hosts(
    pool: RankPool, hosts: str, depth: int, values_type: str, momentum: float
) -> None:
    for count in (1, 999, 600_001):
        found = pool.run(one_step, hosts, count, depth, values_type, momentum)[: len(hosts)]
        assert len(set(found)) == 1  # the same bits on all ranks
        if count > 1:
            assert 0.05 < found[0][1] < 0.9


def momentum_reference(hosts: str) -> None:
    """Momentum correction against a simulation; ratio 1 sends everything at once."""
    if own_rank() >= len(hosts):
        return
    ranks = communicator(hosts)
    all_at_once = TopK("all", ratio=1.0, momentum=0.5)
    for _ in range(3):  # sent values lose their momentum: every step is the plain sum
        tensor = torch.full((100,), float(own_rank() + 1))
        ranks.all_reduce(tensor, "average", wire=all_at_once)
        assert torch.equal(tensor, torch.full((100,), 2.5))
    half = TopK("half", ratio=0.5, momentum=0.5)
    gradient = torch.tensor([4.0, 1.0] * 2)
    results = []
    for _ in range(3):
        tensor = gradient.clone()
        ranks.all_reduce(tensor, wire=half)
        results.append(tensor.tolist())
    # Per host 8 and 2 arrive. 2, then 2 + (1 + 2) = 5, then 5 + (1.5 + 2) = 8.5, above 8.
    assert results == [[16.0, 0.0] * 2, [16.0, 0.0] * 2, [0.0, 17.0] * 2]


def test_momentum_correction(pool: RankPool) -> None:
    pool.run(momentum_reference, "aabb")


def warm_up_and_resume(hosts: str) -> list[float]:
    if own_rank() >= len(hosts):
        return []
    ranks = communicator(hosts)
    wire = TopK("warm", ratio=0.01, warmup_steps=2, first_ratio=0.25)
    shares = []
    gradient = values(own_rank(), (40_000,), torch.float32, "sum")
    tensor = torch.empty_like(gradient)
    all_reduce = ranks.bind_all_reduce(tensor, wire=wire)
    for step in range(4):
        tensor.copy_(gradient)
        if step == 2:
            state = {key: dict(fields) for key, fields in ranks.residuals.state_dict().items()}
            state["warm"]["values"] = state["warm"]["values"].clone()
        all_reduce()
        shares.append((tensor != 0).float().mean().item())
    ranks.residuals.load_state_dict(state)
    for step in (2, 3):
        tensor.copy_(gradient)
        all_reduce()
        assert (tensor != 0).float().mean().item() == shares[step]
    with pytest.raises(ValueError, match="the residual of 'warm' is for elements"):
        ranks.all_reduce(torch.ones(10), wire=wire)
    with pytest.raises(ValueError, match="top-k needs sum or average"):
        ranks.all_reduce(torch.ones(10), "max", wire=wire)
    ranks.residuals.clear()
    return shares


def test_ratio_falls_in_the_warm_up_and_residuals_are_saved(pool: RankPool) -> None:
    shares = pool.run(warm_up_and_resume, "aabb")[0]
    # Two hosts choose nearly unrelated values: twice the ratio at most.
    for share, ratio in zip(shares, [0.25, 0.05, 0.01, 0.01], strict=True):
        assert ratio < share <= 2 * ratio + 1e-4


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"ratio": 0}, "ratio is 0; it must be above 0 and at most 1"),
        ({"values": "int8"}, "values is 'int8'"),
        ({"momentum": 1.0}, r"momentum is 1\.0"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
    ],
)
def test_bad_settings(settings_: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TopK("key", **settings_)  # type: ignore[arg-type]
