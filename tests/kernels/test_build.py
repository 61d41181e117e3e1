"""The build, with a few lines of C++ instead of the kernels."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from taco_kernels import build
from taco_kernels.build import InstructionSet, KernelBuildError
from taco_kernels.library import KernelLibraryError, load_library

PLAIN = InstructionSet("plain", ())
DOUBLED = InstructionSet("doubled", ("-DFACTOR=2",))
UNKNOWN = InstructionSet("unknown", ("-mno-such-set",))


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    files = {
        "factor.h": "#ifndef FACTOR\n#define FACTOR 1\n#endif\n",
        "isa_number.cpp": '#include "factor.h"\n'
        "namespace TACO_ISA { int number() { return 3 * FACTOR; } }\n",
        "other.cpp": "int other() { return 100; }\n",
        "dispatch.cpp": "int other();\n"
        "#define DECLARE(isa) namespace isa { int number(); }\n"
        "TACO_FOR_EACH_ISA(DECLARE)\n"
        "#define PLUS(isa) + isa::number()\n"
        '#define API extern "C" __attribute__((visibility("default")))\n'
        "API int total() { return other() TACO_FOR_EACH_ISA(PLUS); }\n"
        "API const char* taco_source_hash() { return TACO_SOURCE_HASH; }\n",
    }
    folder = tmp_path / "csrc"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def build_all(sources: Path, *sets: InstructionSet) -> build.Build:
    """Build into a new file each time: a process loads each path only once."""
    numbers = range(100)
    output = next(path for i in numbers if not (path := sources.parent / f"library{i}.so").exists())
    return build.build(output, sets, sources=[sources], objects=sources.parent / "objects")


def total(made: build.Build) -> int:
    return int(ctypes.CDLL(str(made.library)).total())


def test_every_set_is_compiled_for_itself_and_the_rest_once(sources: Path) -> None:
    made = build_all(sources, PLAIN, DOUBLED)

    assert made.skipped_sets == {}
    assert total(made) == 100 + 3 + 6


def test_unknown_instruction_set_is_skipped(sources: Path) -> None:
    made = build_all(sources, PLAIN, UNKNOWN)

    assert total(made) == 100 + 3
    assert list(made.skipped_sets) == ["unknown"]
    assert "-mno-such-set" in made.skipped_sets["unknown"]


def test_build_error_includes_the_compilers_message(sources: Path) -> None:
    with pytest.raises(KernelBuildError, match=r"no instruction set(.|\n)*-mno-such-set"):
        build_all(sources, UNKNOWN)

    (sources / "other.cpp").write_text("int other() { return nonsense; }")
    with pytest.raises(KernelBuildError, match=r"cannot compile other.cpp(.|\n)*nonsense"):
        build_all(sources, PLAIN)

    (sources / "other.cpp").write_text("")
    with pytest.raises(KernelBuildError, match=r"cannot link(.|\n)*other\(\)"):
        build_all(sources, PLAIN)


def test_no_compiler_is_an_error(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(KernelBuildError, match="cannot run /no/such/compiler: No such file"):
        build_all(sources, PLAIN)

    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(sources))
    with pytest.raises(KernelBuildError, match=r"no C\+\+ compiler: install g\+\+"):
        build_all(sources, PLAIN)


def test_only_what_changed_is_compiled_again(sources: Path) -> None:
    build_all(sources, PLAIN, DOUBLED)
    objects = sources.parent / "objects"
    before = {path.name: path.stat().st_mtime_ns for path in objects.glob("*.o")}

    (sources / "factor.h").write_text("#ifndef FACTOR\n#define FACTOR 5\n#endif\n")
    made = build_all(sources, PLAIN, DOUBLED)

    after = {path.name: path.stat().st_mtime_ns for path in objects.glob("*.o")}
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"dispatch.o", "isa_number-plain.o", "isa_number-doubled.o"}
    assert total(made) == 100 + 15 + 6


def test_a_failed_build_is_remembered_until_one_succeeds(sources: Path) -> None:
    output = sources.parent / "kernels.so"
    arguments = ["--sources", str(sources), "--output", str(output), "--sets", "avx2"]
    command = [sys.executable, "-m", "taco_kernels.build", *arguments]
    good = (sources / "other.cpp").read_text()

    (sources / "other.cpp").write_text("int other() { return nonsense; }")
    failed = subprocess.run(command, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "could not be built: cannot compile other.cpp" in failed.stderr
    with pytest.raises(KernelLibraryError, match=r"its build failed(.|\n)*nonsense"):
        load_library(output, [sources])

    (sources / "other.cpp").write_text(good)
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert build.failure(output) == ""
    assert ctypes.CDLL(str(output)).total() == 100 + 3


def test_the_hash_is_of_names_and_contents(sources: Path) -> None:
    before = build.source_hash([sources])
    assert build.source_hash([sources]) == before

    (sources / "factor.h").rename(sources / "factors.h")
    renamed = build.source_hash([sources])
    (sources / "factors.h").write_text("")

    assert len({before, renamed, build.source_hash([sources])}) == 3
