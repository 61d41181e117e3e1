"""Compiles Triton kernels for Hopper where there is no GPU, and says what they use of it.

Run as a script it uses a separate process, where kernels are not interpreted: launches
compile and do nothing else, so that the public functions can be called with tensors of the CPU.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

# What a program may take of a multiprocessor of compute capability 9.0.
MAX_SHARED_BYTES = 227 * 1024


@dataclass(frozen=True, slots=True)
class Compiled:
    """One launch's kernel.

    Attributes:
        shared_bytes: shared memory of a program.
        registers: of a thread.
        spilled_bytes: of a thread's stack, where registers did not suffice.
        opcodes: machine instructions and how often they stand in the code.
    """

    kernel: str
    num_warps: int
    shared_bytes: int
    registers: int
    spilled_bytes: int
    opcodes: dict[str, int]

    def count(self, opcode: str) -> int:
        """Instructions whose names begin so."""
        return sum(count for name, count in self.opcodes.items() if name.startswith(opcode))


def compile_calls(script: str) -> list[Compiled]:
    """Runs a script of calls, compiling for sm_90 what they would launch, and returns each launch.

    Raises:
        AssertionError: the script failed, a kernel does not compile or needs too much memory.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__], input=script, text=True, capture_output=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-6000:]
    launches = [Compiled(**fields) for fields in json.loads(done.stdout.splitlines()[-1])]
    for launch in launches:
        assert launch.shared_bytes <= MAX_SHARED_BYTES, launch
    return launches


def _compile_calls_here(script: str) -> list[Compiled]:
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    class Hopper(DriverBase):
        """Answers what compiling asks of a device."""

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError("nothing is launched")

        def get_active_torch_device(self) -> Any:
            raise NotImplementedError("nothing is launched")

        def get_benchmarker(self) -> Any:
            raise NotImplementedError("nothing is launched")

    launches: list[Any] = []
    compile_or_run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(compile_or_run(self, *args, grid=grid, warmup=True, **kwargs))

    driver.set_active(Hopper())
    JITFunction.run = compile_only
    exec(compile(script, "<calls>", "exec"), {"__name__": "calls"})
    opcodes = _disassemble([launch.asm["cubin"] for launch in launches])
    return [_measure(*pair) for pair in zip(launches, opcodes, strict=True)]


def _measure(compiled: Any, opcodes: dict[str, int]) -> Compiled:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        Path(cubin.name).write_bytes(compiled.asm["cubin"])
        dump = _run(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin.name)
    usage = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", dump)}
    return Compiled(
        kernel=compiled.metadata.name,
        num_warps=compiled.metadata.num_warps,
        shared_bytes=compiled.metadata.shared,
        registers=usage["REG"],
        spilled_bytes=usage["STACK"] + usage["LOCAL"],
        opcodes=opcodes,
    )


def _disassemble(cubins: Sequence[bytes]) -> list[dict[str, int]]:
    """Number of times that the code of each cubin has each machine instruction.

    The disassembler takes half a second to start, so it gets the code of all at once.
    """
    from triton import knobs

    codes = [_machine_code(cubin) for cubin in cubins]
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(b"".join(codes))
        dump = _run(knobs.nvidia.nvdisasm.path, "--binary", "SM90a", file.name)
    found = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+\s+)?([\w.]+)", dump, re.M)
    ends = list(accumulate(map(len, codes)))
    assert 16 * len(found) == ends[-1], "each instruction has 16 bytes"
    counters: list[Counter[str]] = [Counter() for _ in codes]
    for address, opcode in found:
        counters[bisect_right(ends, int(address, 16))][opcode] += 1
    return [dict(counter) for counter in counters]


def _machine_code(cubin: bytes) -> bytes:
    """The section `.text.KERNEL` of a cubin, which is an ELF file of 64 bits with one kernel."""
    (headers,) = struct.unpack_from("<Q", cubin, 40)
    size, count, of_names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, headers + i * size) for i in range(count)]
    names = sections[of_names][4]
    (code,) = (
        cubin[offset : offset + length]
        for name, _, _, _, offset, length in sections
        if cubin.startswith(b".text.", names + name)
    )
    return code


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


if __name__ == "__main__":
    print(json.dumps([asdict(launch) for launch in _compile_calls_here(sys.stdin.read())]))
