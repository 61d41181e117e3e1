import pytest

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.library import CpuKernels


@pytest.fixture(params=(*NATIVE, *EMULATED))
def cpu_kernels(request: pytest.FixtureRequest) -> CpuKernels:
    """The kernels of each instruction set that can be tested here, on two threads."""
    return kernels_of(request.param, 2)
