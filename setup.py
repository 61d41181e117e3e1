"""Builds the CPU kernels into the wheel; the rest is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "kernels"))

from taco_kernels import build


class BuildWithKernels(build_py):
    """Compiles the C++ library into the wheel.

    Without a compiler the wheel lacks it, and torch computes. For an editable install
    `make kernels` builds the library.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib, *build.LIBRARY.parent.parts[-2:])
        try:
            made = build.build(folder / build.LIBRARY.name)
        except build.KernelBuildError as error:
            self.warn(f"the wheel lacks the CPU kernels: {error}")
            return
        for name, message in made.skipped_sets.items():
            self.warn(f"skipped instruction set {name}: {message}")


class PlatformWheel(bdist_wheel):
    """Tags the wheel for any Python on this platform: the library has a plain C ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
)
