from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from taco_kernels.cpu.elementwise import FUNCTIONS, apply_function
from taco_kernels.library import CpuKernels

# Normal numbers only: what lies below becomes 0.
SMALLEST = torch.finfo(torch.float32).tiny
# Functions for numbers up to 1, and their relative errors.
POWERS = {"exp2": 2e-7, "exp2_for_bf16": 9e-5}


def floats_of_all_sizes() -> Tensor:
    """Every 40,009th float by its bits, both signs, infinities left out, and a dense middle."""
    bits = torch.arange(0, 0x7F800000, 40_009, dtype=torch.int32)
    positive = torch.cat((bits.view(torch.float32), torch.linspace(0, 20, 30_011)))
    return torch.cat((positive, -positive))


def ulps(value: Tensor, exact: Tensor) -> Tensor:
    """Distance from the exact value in units of the float32 spacing there."""
    rounded = exact.float().abs()
    spacing = torch.nextafter(rounded, torch.tensor(torch.inf)).double() - rounded.double()
    return (value.double() - exact).abs() / spacing


@pytest.mark.parametrize(
    ("name", "exact", "most"),
    [("exp", torch.exp, 1.0), ("tanh", torch.tanh, 1.5), ("erf", torch.erf, 1.25)],
)
def test_functions_err_by_few_ulps(
    cpu_kernels: CpuKernels, name: str, exact: Callable[[Tensor], Tensor], most: float
) -> None:
    x = floats_of_all_sizes()
    expected = exact(x.double())
    value = apply_function(cpu_kernels, name, x)
    is_normal = (expected.abs() >= SMALLEST) & expected.float().isfinite()
    assert ulps(value, expected)[is_normal].max() <= most
    assert value[expected.abs() < SMALLEST].abs().max() <= 1.001 * SMALLEST
    assert torch.equal(value[expected.float().isinf()], expected.float()[expected.float().isinf()])


@pytest.mark.parametrize(("name", "most"), POWERS.items())
def test_powers_of_two(cpu_kernels: CpuKernels, name: str, most: float) -> None:
    x = floats_of_all_sizes()
    x = torch.cat((x[x <= 1], torch.linspace(-130, 1, 40_009), torch.arange(-126.0, 2)))
    expected = torch.exp2(x.double())
    value = apply_function(cpu_kernels, name, x).double()
    is_normal = expected >= SMALLEST
    assert ((value - expected).abs() <= most * expected)[is_normal].all()
    assert ((value >= 0) & (value <= SMALLEST))[~is_normal].all()

    limits = apply_function(cpu_kernels, name, torch.tensor([0.0, -torch.inf, torch.nan, -1e38]))
    assert limits[0] == 1
    assert 0 <= limits[1] <= SMALLEST
    assert limits[2].isnan()
    assert 0 <= limits[3] <= SMALLEST


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu", "relu2", "quick_gelu"])
def test_activations_agree_with_torch(cpu_kernels: CpuKernels, name: str) -> None:
    x = floats_of_all_sizes()
    wide = x.double()
    exact: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
        "silu": F.silu,
        "relu2": lambda y: F.relu(y).square(),
        "quick_gelu": lambda y: y * torch.sigmoid(1.702 * y),
    }
    expected = exact[name](wide)
    value = apply_function(cpu_kernels, name, x)
    # The values near 0 on the left are differences of numbers near x. Squares overflow.
    finite = expected.float().isfinite()
    assert torch.equal(value[~finite], expected.float()[~finite])
    value, expected = value[finite], expected[finite]
    torch.testing.assert_close(value.double(), expected, rtol=4e-7, atol=3e-7)


def test_silu_of_rounded_products(cpu_kernels: CpuKernels) -> None:
    x = floats_of_all_sizes()
    value = apply_function(cpu_kernels, "silu_for_bf16", x).double()
    expected = F.silu(x.double())
    is_normal = expected.abs() >= 1e-34
    assert ((value - expected).abs() <= 1.1e-5 * expected.abs())[is_normal].all()
    far = x < -100
    # The exponential is limited: what lies further left stays near 0 beside any usual number.
    assert (value[far] <= 0).all()
    assert (value[far] >= 1e-36 * x[far].double()).all()


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in (*POWERS, "softplus")])
def test_limits(cpu_kernels: CpuKernels, name: str) -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    value = apply_function(cpu_kernels, name, x)
    at_infinity = 1.0 if name in ("tanh", "erf") else torch.inf
    assert value[0] == at_infinity
    if name in ("exp", "relu", "relu2"):
        assert value[1] == 0.0
    if name in ("tanh", "erf"):
        assert value[1] == -1.0
    assert value[2].isnan()
    assert value[3] == (1.0 if name == "exp" else 0.0)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 4095, 4097])
def test_a_number_does_not_depend_on_its_place(cpu_kernels: CpuKernels, size: int) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 5
    for name in FUNCTIONS:
        whole = apply_function(cpu_kernels, name, x)
        last = apply_function(cpu_kernels, name, x[-1:].clone())
        assert torch.equal(whole[-1:], last)
        reversed_whole = apply_function(cpu_kernels, name, x.flip(0))
        assert torch.equal(reversed_whole.flip(0), whole)


def test_wrong_arguments_are_rejected(cpu_kernels: CpuKernels) -> None:
    with pytest.raises(ValueError, match="unknown function 'sin'"):
        apply_function(cpu_kernels, "sin", torch.zeros(3))
    with pytest.raises(ValueError, match="float32"):
        apply_function(cpu_kernels, "exp", torch.zeros(3, dtype=torch.float64))


def test_softplus(cpu_kernels: CpuKernels) -> None:
    x = floats_of_all_sizes()
    value = apply_function(cpu_kernels, "softplus", x).double()
    wide = x.double()
    expected = wide.clamp(min=0) + torch.log1p(torch.exp(-wide.abs()))
    error = (value - expected).abs()
    assert (error <= 3e-7 * expected)[wide >= -86].all()
    assert (error <= 2 * SMALLEST)[wide < -87.5].all()
    limits = apply_function(
        cpu_kernels, "softplus", torch.tensor([torch.nan, torch.inf, -torch.inf])
    )
    assert limits[0].isnan()
    assert limits[1] == torch.inf
    assert limits[2] == 0
