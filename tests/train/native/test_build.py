"""Libraries in checkouts that another user owns."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from taco_train.native.build import NativeBuildError, build, find


def test_a_library_that_is_up_to_date_is_used_without_writing(tmp_path: Path) -> None:
    built = find("emulation")
    names = {built.name, "emulation.hash"}
    for name in names:
        shutil.copy(built.parent / name, tmp_path)
    assert build("emulation", tmp_path) == tmp_path / built.name
    assert {one.name for one in tmp_path.iterdir()} == names


def test_a_folder_that_cannot_be_written() -> None:
    with pytest.raises(
        NativeBuildError, match=r"^/proc/none/libtaco_emulation\.so cannot be built"
    ):
        build("emulation", Path("/proc/none"))
