"""Compiles csrc/<component>/ into one shared library each: `python -m taco_train.native.build`.

Files are compiled for any x86-64; functions that gain by more have variants for AVX2 and AVX-512
inside, between which the dynamic linker chooses (`__attribute__((target_clones))`, or a table).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"
LIBRARIES = Path(__file__).parents[1] / "lib"
COMPONENTS: tuple[str, ...] = ("collective", "emulation")

# Sums must not depend on how the compiler groups operations: no contraction, no fast-math.
_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-Wall", "-Wextra"),
)
_LINK_FLAGS = (
    *("-shared", "-pthread", "-static-libstdc++", "-static-libgcc"),
    *("-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic", "-Wl,--no-undefined"),
)


class NativeBuildError(Exception):
    """A library could not be built; the message includes the compiler's."""


def source_hash(component: str) -> str:
    """Hash of the component's sources, which its library contains: it shows a stale library."""
    digest = hashlib.sha256()
    for path in _sources(component, "*.h") + _sources(component, "*.cpp"):
        digest.update(f"{path.relative_to(CSRC)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def library_file(component: str, folder: Path = LIBRARIES) -> Path:
    return folder / f"libtaco_{component}.so"


def find(component: str) -> Path:
    """The library of an installed wheel; in a source tree, built first unless it is up to date.

    Raises:
        NativeBuildError: it cannot be built.
    """
    if (CSRC / component).is_dir():
        return build(component)
    return library_file(component)


def build(component: str, folder: Path = LIBRARIES) -> Path:
    """Builds the library unless it is there and up to date.

    Returns:
        The library in `folder`.

    Raises:
        NativeBuildError: there is no compiler, the sources have an error, or the folder cannot be
            written.
    """
    library, mark = library_file(component, folder), folder / f"{component}.hash"
    wanted = source_hash(component)

    def is_built() -> bool:
        return library.is_file() and mark.is_file() and mark.read_text() == wanted

    if is_built():  # without the lock: another user may own the checkout
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{component}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_built():
                _compile(component, library)
                mark.write_text(wanted)
    except OSError as error:
        raise NativeBuildError(f"{library} cannot be built: {error}") from error
    return library


def _compile(component: str, library: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NativeBuildError("no C++ compiler: install g++, or name one in CXX")
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor() as pool:
        units = _sources(component, "*.cpp")
        objects = [Path(temporary) / f"{i}.o" for i in range(len(units))]
        list(
            pool.map(
                lambda unit, out: _run(
                    compiler, *_FLAGS, f"-I{CSRC}", "-c", str(unit), "-o", str(out)
                ),
                units,
                objects,
            )
        )
        made = Path(temporary) / library.name
        _run(compiler, *map(str, objects), *_LINK_FLAGS, "-o", str(made))
        # A process that has the old library mapped keeps it.
        replacement = library.with_suffix(".new")
        shutil.copy(made, replacement)
        replacement.rename(library)


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise NativeBuildError(f"{' '.join(command)}:\n{result.stderr}")


def _sources(component: str, pattern: str) -> list[Path]:
    return sorted((CSRC / component).rglob(pattern))


if __name__ == "__main__":
    try:
        for name in sys.argv[1:] or COMPONENTS:
            build(name)
    except NativeBuildError as error:
        sys.exit(f"taco_train.native.build: error: {error}")
