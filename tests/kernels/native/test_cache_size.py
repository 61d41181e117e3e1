from pathlib import Path

import pytest

from taco_kernels.native.cache_size import last_level_cache_bytes


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (["48K\n", "32K\n", "1024K\n", "32768K\n"], 32 << 20),
        (["2M", "105M"], 105 << 20),
        (["4096\n"], 4096),
        (["nonsense\n", "1K\n"], 1024),
        (["large\n"], 0),
        ([], 0),
    ],
)
def test_the_largest_cache_counts(tmp_path: Path, sizes: list[str], expected: int) -> None:
    for index, size in enumerate(sizes):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size)
    assert last_level_cache_bytes(tmp_path) == expected


def test_the_system_may_report_nothing(tmp_path: Path) -> None:
    assert last_level_cache_bytes(tmp_path / "missing") == 0
