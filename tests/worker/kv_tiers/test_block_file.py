"""The format of block files: a file is used only if all of it is what was written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.stored_blocks import stored_block
from taco_worker.kv_tiers.block_file import (
    BlockFileError,
    describe_file,
    key_of,
    name_of,
    read_block,
    write_block,
)

FINGERPRINT = bytes(range(16))
BLOCK = stored_block(1, 2, 3, parent=bytes(16), salt="tenant")
PAYLOAD = random.Random(0).randbytes(10_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / name_of(BLOCK.key)
    write_block(path, FINGERPRINT, BLOCK, memoryview(PAYLOAD))
    return path


def read(path: Path, fingerprint: bytes = FINGERPRINT, size: int = len(PAYLOAD)) -> bytes:
    payload = bytearray(size)
    assert read_block(path, fingerprint, memoryview(payload)) == BLOCK
    return bytes(payload)


def test_what_was_written_is_read(file: Path) -> None:
    assert read(file) == PAYLOAD
    assert describe_file(file, FINGERPRINT, len(PAYLOAD)) == BLOCK
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_only_the_owner_can_access_a_file(file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_description_may_be_long(tmp_path: Path) -> None:
    block = stored_block(*range(3000), salt="s" * 3000)
    path = tmp_path / name_of(block.key)
    write_block(path, FINGERPRINT, block, memoryview(PAYLOAD))
    assert read_block(path, FINGERPRINT, memoryview(bytearray(len(PAYLOAD)))) == block


def test_writing_again_replaces_the_file(file: Path) -> None:
    write_block(file, FINGERPRINT, BLOCK, memoryview(PAYLOAD[::-1]))
    assert read(file) == PAYLOAD[::-1]


def test_a_changed_byte_is_detected(file: Path) -> None:
    sound = file.read_bytes()
    head = len(sound) - len(PAYLOAD)
    for place in [*range(head), *range(head, len(sound), 97), len(sound) - 1]:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(BlockFileError):
            read(file)
        if place < head:
            with pytest.raises(BlockFileError):
                describe_file(file, FINGERPRINT, len(PAYLOAD))


def test_a_truncated_or_extended_file_is_detected(file: Path) -> None:
    sound = file.read_bytes()
    for size in (0, 1, 43, 44, 45, 100, len(sound) // 2, len(sound) - 1, len(sound) + 1):
        file.write_bytes((sound + b"x")[:size])
        with pytest.raises(BlockFileError, match="truncated"):
            read(file)
        with pytest.raises(BlockFileError, match="truncated"):
            describe_file(file, FINGERPRINT, len(PAYLOAD))


def test_a_block_of_other_weights_or_size_is_rejected(file: Path) -> None:
    with pytest.raises(BlockFileError, match="another model or layout"):
        read(file, fingerprint=bytes(16))
    with pytest.raises(BlockFileError, match="another model or layout"):
        read(file, size=len(PAYLOAD) - 1)


def test_a_block_under_another_name_is_rejected(file: Path) -> None:
    other = file.rename(file.with_name(name_of(bytes(16))))
    with pytest.raises(BlockFileError, match="another block's name"):
        read(other)


def test_links_are_not_followed(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        read(link)


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / name_of(BLOCK.key)
    path.with_suffix(".tmp").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_block(path, FINGERPRINT, BLOCK, memoryview(PAYLOAD))
    assert not path.exists()


@pytest.mark.parametrize("name", ["lock", "README.kv", "00.kv", "0" * 32, "A" * 32 + ".kv"])
def test_other_file_names_have_no_key(name: str) -> None:
    assert key_of(Path(name)) is None


def test_the_file_name_encodes_the_key() -> None:
    assert key_of(Path("dir") / name_of(BLOCK.key)) == BLOCK.key
