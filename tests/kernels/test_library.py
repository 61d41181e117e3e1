import gc
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from support.cpu_kernels import NATIVE, kernels_of
from taco_kernels.cpu.sampling import sample_tokens
from taco_kernels.library import CpuKernels, KernelLibraryError, load_library
from taco_kernels.sampling_metadata import SamplingMetadata


def threads_of_pools() -> int:
    names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("taco-cpu-") for name in names)


def run_script(body: str) -> None:
    """Run in a separate interpreter, with `kernels` and a function `argmax` over them."""
    kernels_of(NATIVE[0], 2)  # so that the library is there
    prelude = """
        import os, sys, threading, torch
        from taco_kernels.library import load
        from taco_kernels.cpu.sampling import sample_tokens
        from taco_kernels.sampling_metadata import SamplingMetadata
        kernels = load(2)
        logits = torch.randn(8, 50_000)
        def argmax():
            return sample_tokens(kernels, logits, SamplingMetadata.greedy(8))
        expected = argmax()
    """
    script = textwrap.dedent(prelude) + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=120)
    assert done.returncode == 0


def test_every_instruction_set_computes(cpu_kernels: CpuKernels) -> None:
    logits = torch.randn(3, 1000)

    tokens = sample_tokens(cpu_kernels, logits, SamplingMetadata.greedy(3))

    assert torch.equal(tokens, logits.argmax(-1))
    has_bf16 = cpu_kernels.isa.endswith(("bf16", "amx"))
    assert cpu_kernels.bf16_operand_bytes == (2 if has_bf16 else 4)
    assert cpu_kernels.int8_operand_bytes == (2 if cpu_kernels.isa == "avx2" else 1)


@pytest.mark.parametrize("isa", NATIVE)
def test_kernels_of_a_named_set_multiply_in_a_new_process(isa: str) -> None:
    """Tiles are illegal until the process has asked the system for them."""
    kernels_of(isa, 1)  # so that the library is there
    script = f"""
        import torch
        from taco_kernels.cpu.matmul import EncodedRows, multiply
        from taco_kernels.cpu.packed_matrix import PackedMatrix
        from taco_kernels.library import CpuKernels, load_library
        kernels = CpuKernels(load_library(), {isa!r}, 2)
        weights = torch.ones(64, 64, dtype=torch.bfloat16)
        matrix = PackedMatrix.from_tensor(kernels, weights, torch.bfloat16)
        out = multiply(kernels, EncodedRows(kernels, torch.ones(3, 64), torch.bfloat16), matrix)
        assert (out == 64).all()
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], timeout=120
    )
    assert done.returncode == 0


def test_kernels_of_an_unknown_set_are_refused() -> None:
    library = kernels_of(NATIVE[0], 1).lib
    with pytest.raises(ValueError, match="avx9 is no instruction set"):
        CpuKernels(library, "avx9")


def test_a_library_that_is_missing_broken_or_stale(tmp_path: Path) -> None:
    kernels_of(NATIVE[0], 2)
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "other.cpp").write_text("// other sources")
    remedy = "build it with `python -m taco_kernels.build`"

    with pytest.raises(KernelLibraryError, match=rf"there is no none\.so: {remedy}"):
        load_library(tmp_path / "none.so")
    with pytest.raises(KernelLibraryError, match=r"cannot load broken\.so"):
        load_library(broken)
    with pytest.raises(KernelLibraryError, match="built from other sources"):
        load_library(sources=[tmp_path / "csrc"])


def test_threads_end_with_their_kernels() -> None:
    shared = kernels_of(NATIVE[0], 2)
    before = threads_of_pools()

    kernels = CpuKernels(shared.lib, NATIVE[0], 4)
    during = threads_of_pools()
    del kernels
    gc.collect()

    assert during == before + 3
    assert threads_of_pools() == before


def test_child_of_a_fork_computes_while_the_parent_is_busy() -> None:
    run_script("""
        stopping = False
        def keep_computing():
            while not stopping:
                argmax()
        busy = threading.Thread(target=keep_computing)
        busy.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                os._exit(not (torch.equal(argmax(), expected) and torch.equal(argmax(), expected)))
            assert os.waitpid(child, 0)[1] == 0
        stopping = True
        busy.join()
        assert torch.equal(argmax(), expected)
    """)


def test_child_of_a_fork_reserves_memory_for_all_threads() -> None:
    """Also if nothing was computed since the fork, so that the threads are not started yet."""
    run_script("""
        from taco_kernels.attention_options import AttentionOptions
        from taco_kernels.cpu import attention
        from taco_kernels.cpu.kv_cache import PagedBatch, PagedKV
        from taco_kernels.kv_entry import KVEntry
        from taco_kernels.kv_format import KVFormat
        cache = PagedKV.allocate(1, KVFormat(torch.float32), 16, [KVEntry(1, 16, 16)])
        one = torch.ones(1, dtype=torch.int32)
        batch = PagedBatch(torch.tensor([0, 1]).int(), one, torch.zeros(1, 1).int())
        allocate, sizes = attention.allocate, []
        def counted(num_bytes):
            sizes.append(num_bytes)
            return allocate(num_bytes)
        attention.allocate = counted
        def reserve():
            attention.AttentionCall(
                kernels, torch.ones(1, 1, 16), cache, batch, 0, AttentionOptions(0.25))
        reserve()
        child = os.fork()
        if child == 0:
            reserve()
            os._exit(sizes[0] != sizes[1])
        assert os.waitpid(child, 0)[1] == 0
    """)


def test_interpreter_exits_while_a_thread_computes() -> None:
    # Without torch in the thread that is left behind: its own calls do not outlive the interpreter.
    run_script("""
        import ctypes
        from taco_kernels.cpu.structs import Mapped
        numbers = torch.ones(1_000_000)
        call = Mapped(1, numbers.numel(), numbers.data_ptr(), numbers.data_ptr())
        started = threading.Event()
        def keep_computing():
            while True:
                kernels.lib.taco_map(kernels.pool, ctypes.byref(call))
                started.set()
        threading.Thread(target=keep_computing, daemon=True).start()
        started.wait()
    """)
