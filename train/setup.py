"""Builds the C++ libraries into the wheel; the rest is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))

from taco_train.native import build


class BuildWithLibraries(build_py):
    """Compiles the C++ into the wheel; for an editable install `make train` does."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "taco_train", "lib")
            for name in build.COMPONENTS:
                build.build(name, folder)
            for path in folder.iterdir():  # marks and locks of builds
                if path.suffix != ".so":
                    path.unlink()


class PlatformWheel(bdist_wheel):
    """Tags the wheel for any Python on this platform: the libraries have a plain C ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": PlatformWheel},
)
