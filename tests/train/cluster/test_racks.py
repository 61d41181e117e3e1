"""Rack files, and what is wrong with bad ones."""

from pathlib import Path

import pytest

from taco_train.cluster.racks import read_racks


def test_hosts_and_racks(tmp_path: Path) -> None:
    file = tmp_path / "racks"
    file.write_text("# rows\ngpu1 a\n gpu2\ta # first row\n\ngpu3 b\ngpu3 b\n")
    assert read_racks(str(file)) == {"gpu1": "a", "gpu2": "a", "gpu3": "b"}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"gpu1 a\ngpu2\n", r"lines `HOST RACK`, not 'gpu2' \(.*racks:2\)"),
        (b"gpu1 a b\n", r"lines `HOST RACK`, not 'gpu1 a b' \(.*racks:1\)"),
        (b"gpu1 a\ngpu1 b\n", r"names each host once, not gpu1 again \(.*racks:2\)"),
        (b"# nothing\n", "names no host"),
        (b"\xff\xfe\x00", "it is not text"),
        (None, "No such file or directory"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes | None, error: str) -> None:
    file = tmp_path / "racks"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=error):
        read_racks(str(file))


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Is a directory"):
        read_racks(str(tmp_path))


def test_a_file_without_an_end() -> None:
    with pytest.raises(ValueError, match="not /dev/zero: it has more than 16777216 bytes"):
        read_racks("/dev/zero")
