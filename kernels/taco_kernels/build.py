"""Compiles the C++ of native/csrc/ and cpu/csrc/: `python -m taco_kernels.build`.

The result is one shared library that holds every instruction set. Files named isa_*.cpp are
compiled once per instruction set, all others once for any x86-64. Object files are cached in the
checkout's build folder and compiled again when one of their inputs has changed.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

# Include paths start at these folders, so that no path exists in both.
SOURCES = tuple(Path(__file__).parent / part / "csrc" for part in ("native", "cpu"))
LIBRARY = Path(__file__).parent / "lib" / "libtaco_kernels.so"

# Results must not depend on how the compiler groups operations: no contraction, no fast-math.
_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-Wall", "-Wextra"),
)
# The C++ runtime is linked statically and hidden, so that other versions of it can be loaded too.
_LINK_FLAGS = (
    *("-shared", "-pthread", "-static-libstdc++", "-static-libgcc"),
    *("-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic", "-Wl,--no-undefined"),
)

_AVX2 = ("-mavx2", "-mfma", "-mf16c")
# GCC 12 warns of undefined operands inside its own AVX-512 intrinsics (PR 105593).
_AVX512_WARNINGS = ("-Wno-uninitialized", "-Wno-maybe-uninitialized")
_AVX512 = (
    *(*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
    *_AVX512_WARNINGS,
)
_AVX512_BF16 = (*_AVX512, "-mavx512bf16")
_EMULATED = (*_AVX2, "-DTACO_EMULATED")


class KernelBuildError(Exception):
    """The kernels could not be built; the message includes the compiler's."""


@dataclass(frozen=True)
class InstructionSet:
    """An instruction set that isa_*.cpp are compiled for; its name is also its C++ namespace."""

    name: str
    flags: tuple[str, ...]


# Each set is a superset of those before it (see _link).
NATIVE_SETS: tuple[InstructionSet, ...] = (
    InstructionSet("avx2", _AVX2),
    InstructionSet("avx512", _AVX512),
    InstructionSet("avx512_bf16", _AVX512_BF16),
    InstructionSet("amx", (*_AVX512_BF16, "-mamx-tile", "-mamx-int8", "-mamx-bf16")),
)

# The same kernels over vectors in plain C++, for tests on machines that lack the instructions.
EMULATED_SETS: tuple[InstructionSet, ...] = (
    InstructionSet("emulated_avx512", _EMULATED),
    InstructionSet("emulated_avx512_bf16", (*_EMULATED, "-DTACO_EMULATE_BF16")),
    InstructionSet("emulated_amx", (*_EMULATED, "-DTACO_EMULATE_BF16", "-DTACO_EMULATE_AMX")),
)


@dataclass(frozen=True)
class Build:
    """The result of a build.

    Attributes:
        library: the shared library.
        skipped_sets: the sets that this compiler could not build, each with the compiler's message.
    """

    library: Path
    skipped_sets: dict[str, str]


def source_hash(sources: Sequence[Path] = SOURCES) -> str:
    """Hash of all files under `sources`, which the library contains: it shows a stale library."""
    digest = hashlib.sha256()
    for folder in sources:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".cpp"):
                digest.update(f"{path.relative_to(folder)}\0".encode())
                digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def include_flags(sources: Sequence[Path] = SOURCES) -> tuple[str, ...]:
    """The compiler's flags that find the headers of `sources`."""
    return tuple(f"-I{folder}" for folder in sources)


def failure(output: Path = LIBRARY) -> str:
    """The compiler's message if the last build of `output` failed, else an empty string."""
    file = _failure_file(output)
    return f"its build failed: {file.read_text()}" if file.exists() else ""


def _failure_file(output: Path) -> Path:
    return output.with_suffix(".failure.txt")


def build(
    output: Path = LIBRARY,
    sets: tuple[InstructionSet, ...] = NATIVE_SETS,
    *,
    sources: Sequence[Path] = SOURCES,
    objects: Path | None = None,
    jobs: int | None = None,
) -> Build:
    """Builds `output` from `sources` with the instruction sets that the compiler supports.

    Args:
        objects: folder that keeps object files between builds; by default a folder of the
            checkout, or a temporary one outside of a checkout.
        jobs: compilers that run at a time; by default one per core.

    Raises:
        KernelBuildError: there is no compiler, it supports no set, or the sources have an error.
    """
    _failure_file(output).unlink(missing_ok=True)
    try:
        with _objects_folder(objects) as folder, _lock(folder):
            return _build(output, sets, sources, folder, jobs or len(os.sched_getaffinity(0)))
    except KernelBuildError as error:
        output.parent.mkdir(parents=True, exist_ok=True)
        _failure_file(output).write_text(str(error))
        raise


def _build(
    output: Path,
    sets: tuple[InstructionSet, ...],
    sources: Sequence[Path],
    folder: Path,
    jobs: int,
) -> Build:
    compiler = find_compiler()
    hash_before = source_hash(sources)
    units, dispatch = _units(sources, sets)
    with ThreadPoolExecutor(jobs) as pool:
        compiled = list(pool.map(lambda unit: _compile(compiler, unit, folder), units))

    skipped_sets: dict[str, str] = {}
    for unit, (_, message) in zip(units, compiled, strict=True):
        if message and unit.isa is None:
            raise KernelBuildError(f"cannot compile {unit.source.name}:\n{message}")
        if message and unit.isa is not None:
            skipped_sets.setdefault(unit.isa, message)
    built = [isa.name for isa in sets if isa.name not in skipped_sets]
    if not built:
        message = skipped_sets[sets[0].name]
        raise KernelBuildError(f"no instruction set could be compiled; {sets[0].name}:\n{message}")
    names = " ".join(f"X({name})" for name in built)
    defined = (f'-DTACO_SOURCE_HASH="{hash_before}"', f"-DTACO_FOR_EACH_ISA(X)={names}")
    dispatch = replace(dispatch, flags=(*dispatch.flags, *defined))
    path, message = _compile(compiler, dispatch, folder)
    if message:
        raise KernelBuildError(f"cannot compile dispatch.cpp:\n{message}")
    objects_of_sets = [
        path
        for unit, (path, _) in zip(units, compiled, strict=True)
        if unit.isa not in skipped_sets
    ]
    _link(compiler, [path, *objects_of_sets], output)
    return Build(output, skipped_sets)


@dataclass(frozen=True)
class _Unit:
    """One run of the compiler: a source file, and the instruction set that it is compiled for."""

    source: Path
    name: str  # of the source below its folder of sources, as part of the object's name
    flags: tuple[str, ...]
    isa: str | None = None

    @property
    def object_name(self) -> str:
        return f"{self.name}{'-' + self.isa if self.isa else ''}.o"


def _units(sources: Sequence[Path], sets: tuple[InstructionSet, ...]) -> tuple[list[_Unit], _Unit]:
    """Every unit but dispatch.cpp, and dispatch.cpp, whose flags name the sets that compiled."""
    includes = include_flags(sources)
    plain: list[_Unit] = []
    by_set: list[_Unit] = []
    for folder in sources:
        for path in sorted(folder.rglob("*.cpp")):
            name = "-".join(path.relative_to(folder).with_suffix("").parts)
            if path.name.startswith("isa_"):
                by_set += [
                    _Unit(path, name, (*includes, *isa.flags, f"-DTACO_ISA={isa.name}"), isa.name)
                    for isa in sets
                ]
            else:
                plain.append(_Unit(path, name, includes))
    dispatch = next(unit for unit in plain if unit.source.name == "dispatch.cpp")
    plain.remove(dispatch)
    by_set.sort(key=lambda unit: [isa.name for isa in sets].index(unit.isa or ""))
    return [*plain, *by_set], dispatch


def find_compiler() -> list[str]:
    """Command of the compiler: $CXX, or the first C++ compiler on the path."""
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in ("g++", "c++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise KernelBuildError("no C++ compiler: install g++ (11 or newer) or set CXX")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise KernelBuildError(f"cannot run {command[0]}: {error.strerror}") from error


def _compile(compiler: list[str], unit: _Unit, folder: Path) -> tuple[Path, str]:
    """Returns the object file, and the compiler's message if it could not be compiled."""
    out = folder / unit.object_name
    command = [*compiler, *_FLAGS, *unit.flags, "-c", str(unit.source), "-o", str(out)]
    record = out.with_suffix(".json")
    identity = [_run([*compiler, "--version"]).stdout, *command]
    if out.exists() and record.exists():
        known = json.loads(record.read_text())
        if known["identity"] == identity and all(
            _digest(path) == digest for path, digest in known["inputs"].items()
        ):
            return out, ""

    record.unlink(missing_ok=True)
    dependencies = out.with_suffix(".d")
    done = _run([*command, "-MMD", "-MF", str(dependencies)])
    if done.returncode != 0:
        return out, done.stderr.strip()
    if done.stderr:
        print(done.stderr, file=sys.stderr, end="")
    inputs = shlex.split(dependencies.read_text().replace("\\\n", " "))[1:]
    digests = {path: _digest(path) for path in inputs}
    record.write_text(json.dumps({"identity": identity, "inputs": digests}))
    return out, ""


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _link(compiler: list[str], objects: list[Path], output: Path) -> None:
    """Links objects in order from the smallest instruction set to the best: of inline functions
    outside the sets' namespaces the linker keeps the first copy, which every later set can run."""
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_suffix(f".{os.getpid()}.tmp")
    command = [*compiler, *map(str, objects), *_LINK_FLAGS, "-o", str(unfinished)]
    done = _run(command)
    if done.returncode != 0:
        raise KernelBuildError(f"cannot link {output.name}:\n{done.stderr.strip()}")
    unfinished.replace(output)  # processes that have loaded the old file keep it


@contextmanager
def _objects_folder(given: Path | None) -> Iterator[Path]:
    checkout = Path(__file__).parents[2]
    if given is None and not (checkout / "pyproject.toml").exists():
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    folder = given or checkout / "build" / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m taco_kernels.build", description=__doc__)
    parser.add_argument(
        "--sources", type=Path, nargs="+", default=SOURCES, help="Folders of C++ sources."
    )
    parser.add_argument("--output", type=Path, default=LIBRARY)
    parser.add_argument(
        "--sets",
        help="Comma-separated names of the instruction sets to build (default: all native ones).",
    )
    arguments = parser.parse_args()
    sets = NATIVE_SETS
    if arguments.sets:
        names = arguments.sets.split(",")
        sets = tuple(isa for isa in (*NATIVE_SETS, *EMULATED_SETS) if isa.name in names)
    objects = None if tuple(arguments.sources) == SOURCES else arguments.output.parent / "objects"
    if not arguments.output.exists():
        print("Compiling the CPU kernels: this takes a minute or more, once", flush=True)
    try:
        result = build(arguments.output, sets, sources=arguments.sources, objects=objects)
    except KernelBuildError as error:
        print(f"The CPU kernels could not be built: {error}", file=sys.stderr)
        return 1
    for name, message in result.skipped_sets.items():
        print(f"warning: skipped instruction set {name}:\n{message}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
