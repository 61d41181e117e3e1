"""The thread pool, by a C++ program that uses it as kernels do; and from Python."""

import subprocess
from pathlib import Path

import pytest

from taco_kernels import build


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("pool") / "stress"
    pool = Path(build.__file__).parent / "native" / "csrc" / "runtime" / "thread_pool.cpp"
    sources = [Path(__file__).with_name("thread_pool_stress.cpp"), pool]
    flags = ["-std=c++17", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [*build.find_compiler(), *flags, *build.include_flags(), *sources, "-o", program],
        check=True,
    )
    return program


@pytest.mark.parametrize("num_threads", [1, 2, 5, 11])  # 11: several share a range
def test_each_item_comes_once_and_barriers_order_memory(stress: Path, num_threads: int) -> None:
    subprocess.run([stress, str(num_threads), "200"], check=True, timeout=120)
