"""The structs that Python fills lie in memory as C++ reads them."""

import ctypes
import subprocess
from pathlib import Path

from taco_kernels import build
from taco_kernels.cpu import program_structs, recurrence_structs, structs


def python_structs() -> dict[str, type[ctypes.Structure]]:
    return {
        name: struct
        for module in (structs, program_structs, recurrence_structs)
        for name, struct in vars(module).items()
        if isinstance(struct, type)
        and issubclass(struct, ctypes.Structure)
        and struct.__module__ == module.__name__
    }


def python_layout(struct: type[ctypes.Structure]) -> list[int]:
    """Its size, then the offset of each field."""
    return [ctypes.sizeof(struct), *(getattr(struct, field[0]).offset for field in struct._fields_)]


def test_both_sides_agree_on_every_field(tmp_path: Path) -> None:
    expected = python_structs()
    headers = ["dispatch/kernel_table.h", "matmul/codes/code_packer.h", "sampling/penalize.h"]
    headers += ["cstddef", "cstdio"]
    lines = [*(f"#include <{header}>" for header in headers), "int main() {"]
    for name, struct in expected.items():
        numbers = [f"sizeof({name})", *(f"offsetof({name}, {f[0]})" for f in struct._fields_)]
        lines += [f'std::puts("{name}");', *(f'std::printf("%zu\\n", {n});' for n in numbers)]
    program = tmp_path / "layout"
    (tmp_path / "layout.cpp").write_text("\n".join([*lines, "}"]))
    flags: list[str | Path] = ["-std=c++17", *build.include_flags(), "-o", program]
    subprocess.run([*build.find_compiler(), *flags, tmp_path / "layout.cpp"], check=True)

    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    layouts: dict[str, list[int]] = {}
    for word in printed.split():
        if word.isdigit():
            layouts[name].append(int(word))
        else:
            layouts[name := word] = []

    assert layouts == {name: python_layout(struct) for name, struct in expected.items()}
