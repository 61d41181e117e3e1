"""The locked directory of one worker, and the blocks that a new worker finds in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.stored_blocks import stored_block
from taco_proto.errors import ConfigurationError
from taco_proto.kv_tiers import StoredBlock
from taco_worker.kv_tiers.block_file import name_of
from taco_worker.kv_tiers.store_directory import StoreDirectory

FINGERPRINT = bytes(range(16))
SIZE = 64
ROOT = stored_block(1)
CHILD = stored_block(2, parent=ROOT.key)
GRANDCHILD = stored_block(3, parent=CHILD.key)
OTHER_ROOT = stored_block(4)


@contextmanager
def opened(
    root: Path, name: str = "w", fingerprint: bytes = FINGERPRINT
) -> Iterator[StoreDirectory]:
    directory = StoreDirectory(root, fingerprint, SIZE, name)
    try:
        yield directory
    finally:
        directory.close()


def write(directory: StoreDirectory, *blocks: StoredBlock) -> None:
    for block in blocks:
        directory.write(block, memoryview(bytes(SIZE)))


def found(directory: StoreDirectory, max_blocks: int = 99) -> list[StoredBlock]:
    return [block for block in directory.scan(max_blocks) if block is not None]


def names(directory: StoreDirectory) -> set[str]:
    return {path.name for path in directory.path.iterdir()} - {"lock"}


def test_scan_yields_parents_before_children(tmp_path: Path) -> None:
    with opened(tmp_path) as directory:
        write(directory, GRANDCHILD, OTHER_ROOT, CHILD, ROOT)
    with opened(tmp_path) as directory:
        blocks = found(directory)
        assert sorted(b.key for b in blocks) == sorted(
            b.key for b in (ROOT, CHILD, GRANDCHILD, OTHER_ROOT)
        )
        order = [blocks.index(block) for block in (ROOT, CHILD, GRANDCHILD)]
        assert order == sorted(order)


def test_blocks_with_an_incomplete_prefix_are_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as directory:
        write(directory, ROOT, GRANDCHILD, stored_block(5, parent=GRANDCHILD.key))
        assert found(directory) == [ROOT]
        assert names(directory) == {name_of(ROOT.key)}


def test_damaged_files_are_deleted_and_foreign_files_kept(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as directory:
        write(directory, ROOT, CHILD, OTHER_ROOT)
        (directory.path / name_of(OTHER_ROOT.key)).write_bytes(b"torn")
        (directory.path / "123.tmp").write_bytes(b"left over")
        (directory.path / "notes.txt").write_bytes(b"somebody's")
        assert found(directory) == [ROOT, CHILD]
        assert names(directory) == {name_of(ROOT.key), name_of(CHILD.key), "notes.txt"}


def test_files_of_other_weights_are_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as directory, opened(tmp_path, fingerprint=bytes(16)) as other:
        assert other.path != directory.path
        write(other, ROOT)
        name = name_of(ROOT.key)
        (other.path / name).rename(directory.path / name)
        assert found(directory) == []
        assert names(directory) == set()


def test_beyond_the_limit_the_deepest_blocks_are_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as directory:
        write(directory, ROOT, CHILD, GRANDCHILD)
        assert found(directory, max_blocks=2) == [ROOT, CHILD]
        assert names(directory) == {name_of(ROOT.key), name_of(CHILD.key)}


def test_an_unreadable_block_file_is_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as directory:
        write(directory, ROOT)
        path = directory.path / name_of(ROOT.key)
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        with pytest.raises(ValueError, match="damaged"):
            directory.read(ROOT.key, memoryview(bytearray(SIZE)))
        assert names(directory) == set()
        with pytest.raises(FileNotFoundError):
            directory.read(ROOT.key, memoryview(bytearray(SIZE)))


def test_two_workers_never_share_a_directory(tmp_path: Path) -> None:
    with opened(tmp_path, "w/1") as first, opened(tmp_path, "w/2") as second:
        assert second.path == first.path / "worker-w_2"
        write(second, ROOT)
        assert found(first) == []
        assert found(second) == [ROOT]
        with opened(tmp_path, "w/2") as of_the_same_name:
            assert of_the_same_name.path == first.path / "worker-w_2-2"
    with opened(tmp_path, "w/3") as third:
        assert third.path == first.path


def test_workers_use_the_directories_of_earlier_ones(tmp_path: Path) -> None:
    with opened(tmp_path, "a-17") as first, opened(tmp_path, "b-18") as second:
        paths = [first.path, second.path]
        write(second, ROOT)
    with opened(tmp_path, "b-23") as first, opened(tmp_path, "a-24") as second:
        assert [first.path, second.path] == paths
        assert found(second) == [ROOT]
        with opened(tmp_path, "c") as third, opened(tmp_path, "d") as fourth:
            paths += [third.path, fourth.path]
    with opened(tmp_path, "x"), opened(tmp_path, "d") as of_its_name:
        assert of_its_name.path == paths[3]
        with opened(tmp_path, "y") as second, opened(tmp_path, "z") as third:
            assert {second.path, third.path} == {paths[1], paths[2]}


def test_files_of_other_weights_are_counted(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "big.kv").write_bytes(bytes(1000))
    with opened(tmp_path, fingerprint=bytes(16)) as other:
        write(other, ROOT)
        with opened(tmp_path, "w2", fingerprint=bytes(16)) as second:
            write(second, ROOT)
        size = (other.path / name_of(ROOT.key)).stat().st_size
    with opened(tmp_path) as directory:
        write(directory, ROOT)
        assert directory.num_other_bytes() == 2 * size


def test_only_the_owner_can_access_a_directory(tmp_path: Path) -> None:
    with opened(tmp_path / "a" / "b") as directory:
        directory.path.chmod(0o755)
    with opened(tmp_path / "a" / "b") as directory:
        assert directory.path.stat().st_mode & 0o777 == 0o700
        assert (directory.path / "lock").stat().st_mode & 0o777 == 0o600


def test_an_impossible_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"no KV directory .*: Not a directory"):
        StoreDirectory(tmp_path / "file", FINGERPRINT, SIZE, "w")
    (tmp_path / FINGERPRINT.hex()).symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="no KV directory"):
        StoreDirectory(tmp_path, FINGERPRINT, SIZE, "w")


def test_another_users_directory_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        StoreDirectory(tmp_path, FINGERPRINT, SIZE, "w")
