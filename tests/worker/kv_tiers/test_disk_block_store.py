"""Commands to the disk tier and their reports."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.stored_blocks import Reports, stored_block
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_worker.kv_tiers.block_file import name_of
from taco_worker.kv_tiers.disk_block_store import DiskBlockStore
from taco_worker.kv_tiers.store_directory import StoreDirectory

BLOCKS = [stored_block(number) for number in range(40)]
KEYS = [block.key for block in BLOCKS]


def host_rows(block_bytes: int = 64) -> Tensor:
    return torch.randint(0, 256, (8, block_bytes), dtype=torch.uint8)


@contextmanager
def disk_tier(root: Path, rows: Tensor, num_blocks: int = 64) -> Iterator[DiskBlockStore]:
    tier = DiskBlockStore(StoreDirectory(root, bytes(16), rows.shape[1], "w"), rows, num_blocks)
    try:
        yield tier
    finally:
        tier.close()


def do(tier: DiskBlockStore, command: StoreCommand) -> StoreReport:
    """The single report of a short command, without times. No report of an earlier command may be
    pending.
    """
    reports = Reports()
    tier.submit(command, reports)
    report = reports.next()
    assert reports.is_empty
    assert (report.read_seconds > 0) == bool(report.read)
    return replace(report, read_seconds=0.0)


def listed(tier: DiskBlockStore) -> list[bytes]:
    reports = Reports()
    tier.reset()
    tier.submit(StoreCommand(), reports)
    return [block.key for block in reports.found()]


def stored_names(root: Path) -> set[str]:
    return {path.name for path in (root / bytes(16).hex()).iterdir()} - {"lock"}


def test_what_was_written_is_read_into_another_host_block(tmp_path: Path) -> None:
    rows = host_rows()
    before = rows.clone()
    with disk_tier(tmp_path, rows) as tier:
        assert listed(tier) == []
        written = do(tier, StoreCommand(writes=((3, BLOCKS[0]), (5, BLOCKS[1]))))
        assert written == StoreReport(written=(KEYS[0], KEYS[1]))
        read = do(tier, StoreCommand(reads=((KEYS[1], 0), (KEYS[0], 1))))
        assert read == StoreReport(read=(KEYS[1], KEYS[0]))
    assert torch.equal(rows[0], before[5])
    assert torch.equal(rows[1], before[3])
    assert torch.equal(rows[2:], before[2:])


def test_a_command_writes_then_reads_then_deletes(tmp_path: Path) -> None:
    rows = host_rows()
    before = rows.clone()
    with disk_tier(tmp_path, rows) as tier:
        listed(tier)
        both = StoreCommand(
            writes=((3, BLOCKS[0]),), reads=((KEYS[0], 4),), deletes=(KEYS[0], KEYS[7])
        )
        assert do(tier, both) == StoreReport(written=(KEYS[0],), read=(KEYS[0],))
        assert do(tier, StoreCommand(reads=((KEYS[0], 4),))) == StoreReport(failed=(KEYS[0],))
    assert torch.equal(rows[4], before[3])
    assert stored_names(tmp_path) == set()


def test_a_new_store_reports_all_blocks(tmp_path: Path) -> None:
    rows = host_rows()
    before = rows.clone()
    child = stored_block(9, parent=KEYS[2])
    with disk_tier(tmp_path, rows) as tier:
        listed(tier)
        do(tier, StoreCommand(writes=((2, BLOCKS[2]), (1, child))))
    rows.zero_()
    with disk_tier(tmp_path, rows) as tier:
        reports = Reports()
        tier.submit(StoreCommand(reads=((child.key, 7),)), reports)
        assert reports.found() == [BLOCKS[2], child]
        assert reports.next().read == (child.key,)
    assert torch.equal(rows[7], before[1])


def test_found_blocks_are_reported_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taco_worker.kv_tiers.disk_block_store._FOUND_IN_REPORT", 3)
    with disk_tier(tmp_path, host_rows()) as tier:
        listed(tier)
        do(tier, StoreCommand(writes=tuple((0, block) for block in BLOCKS[:7])))
        tier.reset()
        reports = Reports()
        tier.submit(StoreCommand(), reports)
        chunks = [reports.next() for _ in range(3)]
    assert [len(chunk.found) for chunk in chunks] == [3, 3, 1]
    assert [chunk.is_complete for chunk in chunks] == [False, False, True]


def test_long_commands_send_intermediate_reports(tmp_path: Path) -> None:
    with disk_tier(tmp_path, host_rows()) as tier:
        listed(tier)
        reports = Reports()
        tier.submit(StoreCommand(writes=tuple((0, block) for block in BLOCKS)), reports)
        parts = [reports.next().written for _ in range(3)]
    assert [len(part) for part in parts] == [16, 16, 8]
    assert [key for part in parts for key in part] == KEYS


def test_the_number_of_files_is_limited(tmp_path: Path) -> None:
    with disk_tier(tmp_path, host_rows(), num_blocks=2) as tier:
        listed(tier)
        full = do(tier, StoreCommand(writes=tuple((0, block) for block in BLOCKS[:3])))
        assert full == StoreReport(written=(KEYS[0], KEYS[1]), failed=(KEYS[2],))
        again = do(tier, StoreCommand(writes=((4, BLOCKS[1]),)))
        assert again == StoreReport(written=(KEYS[1],))
        do_nothing = StoreCommand(deletes=(KEYS[0],), writes=())
        tier.submit(do_nothing, Reports())
        assert do(tier, StoreCommand(writes=((0, BLOCKS[3]),))).written == (KEYS[3],)
    assert stored_names(tmp_path) == {name_of(KEYS[1]), name_of(KEYS[3])}


@pytest.mark.parametrize("host_block", [-1, 8, 2**31])
def test_unknown_host_blocks_fail(tmp_path: Path, host_block: int) -> None:
    with disk_tier(tmp_path, host_rows()) as tier:
        listed(tier)
        failed = do(tier, StoreCommand(writes=((host_block, BLOCKS[0]),)))
        assert failed == StoreReport(failed=(KEYS[0],))
        do(tier, StoreCommand(writes=((0, BLOCKS[0]),)))
        failed = do(tier, StoreCommand(reads=((KEYS[0], host_block),)))
        assert failed == StoreReport(failed=(KEYS[0],))
        assert listed(tier) == []


def test_a_damaged_file_is_reported_and_deleted(tmp_path: Path) -> None:
    with disk_tier(tmp_path, host_rows()) as tier:
        listed(tier)
        do(tier, StoreCommand(writes=((0, BLOCKS[0]), (1, BLOCKS[1]))))
        path = tmp_path / bytes(16).hex() / name_of(KEYS[0])
        path.write_bytes(path.read_bytes()[:-1])
        report = do(tier, StoreCommand(reads=((KEYS[0], 2), (KEYS[1], 3))))
        assert report == StoreReport(read=(KEYS[1],), failed=(KEYS[0],))
        assert listed(tier) == [KEYS[1]]


def test_a_full_disk_fails_writes_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel stops a write in the middle of a file."""
    rows = host_rows(2**20)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with disk_tier(tmp_path, rows) as tier:
        listed(tier)
        do(tier, StoreCommand(writes=((0, BLOCKS[0]),)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, limits[1]))
        try:
            report = do(tier, StoreCommand(writes=tuple((1, block) for block in BLOCKS[:3])))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert report == StoreReport(failed=tuple(KEYS[:3]))
        assert stored_names(tmp_path) == set()
        assert do(tier, StoreCommand(writes=((1, BLOCKS[0]),))).written == (KEYS[0],)
    warnings = [record.message for record in caplog.records]
    assert warnings == [
        "storing or reading a KV block failed: File too large (1 so far); its tokens are recomputed"
    ]


def test_a_deleted_directory_fails_writes(tmp_path: Path) -> None:
    with disk_tier(tmp_path, host_rows()) as tier:
        listed(tier)
        (tmp_path / bytes(16).hex()).rename(tmp_path / "elsewhere")
        assert do(tier, StoreCommand(writes=((0, BLOCKS[0]),))).failed == (KEYS[0],)
        assert listed(tier) == []


def test_a_reset_drops_earlier_commands(tmp_path: Path) -> None:
    """Their host blocks may hold other data by then."""
    at_first, go_on = threading.Event(), threading.Event()

    def hold_up(_: StoreReport) -> None:
        at_first.set()
        go_on.wait()

    with disk_tier(tmp_path, host_rows()) as tier:
        listed(tier)
        tier.submit(StoreCommand(writes=tuple((0, block) for block in BLOCKS[:17])), hold_up)
        tier.submit(StoreCommand(writes=((0, BLOCKS[20]),)), hold_up)
        at_first.wait()
        tier.reset()
        go_on.set()
        assert set(listed(tier)) == set(KEYS[:16])


def test_a_reset_ends_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco_worker.kv_tiers.disk_block_store._FOUND_IN_REPORT", 1)
    at_first, go_on = threading.Event(), threading.Event()
    seen: list[StoreReport] = []

    def hold_up(report: StoreReport) -> None:
        seen.append(report)
        at_first.set()
        go_on.wait()

    with disk_tier(tmp_path, host_rows()) as tier:
        listed(tier)
        do(tier, StoreCommand(writes=tuple((0, block) for block in BLOCKS[:3])))
        tier.reset()
        tier.submit(StoreCommand(), hold_up)
        at_first.wait()
        tier.reset()
        go_on.set()
        assert set(listed(tier)) == set(KEYS[:3])
    assert len(seen) == 1
