"""The ledger of a single server: what SQLite keeps across restarts and failures."""

import asyncio
import errno
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from support.licenses import KEYS, Clock, gpu_names, make_license, make_service, signed
from support.patience import PATIENCE_SECONDS
from taco_license.document.license_file import verify
from taco_license.errors import NotStoredError, SettingError
from taco_license.ledger.sqlite_store import DATABASE, Store
from taco_license.server.server import LicenseServerConfig, run_license_server
from taco_license.server.service import LicenseService


async def test_a_full_disk_keeps_leases_and_license(service: LicenseService, store: Store) -> None:
    await service.import_license(signed(make_license(2)))
    before = service.view()
    store._connection.execute("PRAGMA max_page_count = 1")  # no further page
    with pytest.raises(NotStoredError, match="the current license stays in use"):
        await service.import_license(signed(make_license(2000, serial=2)))
    assert service.view() == before
    stored = store.document()
    assert stored is not None
    assert verify(stored[0], KEYS) == service.license
    for gpu in gpu_names(2) * 200:
        assert await service.lease((gpu,), "a", 1) > 0
    store._connection.execute("PRAGMA max_page_count = 1000000")
    await service.import_license(signed(make_license(2000, serial=2)))


KILLED_IMPORT = """
import asyncio, os, signal, sys
from support.licenses import Clock, make_license, make_service, signed
from taco_license.ledger.sqlite_store import Store

directory, last_words = sys.argv[1:]
store = Store(directory)
service = make_service(store, Clock())
asyncio.run(service.import_license(signed(make_license(3, serial=1))))

def die(statement):
    if statement.startswith(last_words):
        os.kill(os.getpid(), signal.SIGKILL)

store._connection.set_trace_callback(die)
asyncio.run(service.import_license(signed(make_license(2000, serial=2))))
"""


@pytest.mark.parametrize("last_words", ["INSERT OR REPLACE INTO clock", "COMMIT"])
def test_a_server_killed_in_mid_import_keeps_the_old_license(
    tmp_path: Path, clock: Clock, last_words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_IMPORT, str(tmp_path), last_words],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=PATIENCE_SECONDS,
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Store(tmp_path) as store:
        service = make_service(store, clock)
        assert service.license is not None
        assert (service.license.serial, len(service.license.gpus)) == (1, 3)
        asyncio.run(service.import_license(signed(make_license(2000, serial=2))))


async def test_a_stored_license_with_another_serial_is_not_used(store: Store, clock: Clock) -> None:
    store.replace_document(signed(make_license(2)), 9, 0.0, ())
    service = make_service(store, clock)
    assert service.license is None
    await service.import_license(signed(make_license(2, serial=2)))


async def test_the_audit_log_is_append_only(service: LicenseService, tmp_path: Path) -> None:
    await service.import_license(signed(make_license()))
    with sqlite3.connect(tmp_path / "data" / DATABASE) as connection:
        for change in ("DELETE FROM audit", "UPDATE audit SET event = 'nothing'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(change)
    connection.close()


def test_two_servers_cannot_share_a_store(store: Store, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="another license server"):
        Store(tmp_path / "data")


def test_an_unusable_store_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="cannot write in"):
        Store(tmp_path / "file" / "data")
    (tmp_path / DATABASE).write_bytes(b"no database" * 100)
    with pytest.raises(SettingError, match="not a database"):
        Store(tmp_path)
    (tmp_path / DATABASE).unlink()
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(SettingError, match="another version"):
        Store(tmp_path)


def test_a_file_system_without_locks_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(SettingError, match=r"cannot lock .*: No locks available"):
        Store(tmp_path)


def test_a_damaged_database_is_a_clear_error(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store._connection.execute("DROP TABLE clock")
    config = LicenseServerConfig(host="127.0.0.1", port=0, data_dir=str(tmp_path))
    with pytest.raises(SettingError, match=r"cannot use .*license\.db: no such table: clock"):
        run_license_server(config)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


def test_only_the_server_s_user_can_read_the_store(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with Store(directory):
        assert directory.stat().st_mode & 0o777 == 0o700
        assert modes(directory).keys() >= {DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"}
        assert set(modes(directory).values()) == {0o600}


def test_an_existing_store_is_made_private(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with Store(directory):
        pass
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o644)
    with Store(directory):
        assert directory.stat().st_mode & 0o777 == 0o700
        database_modes = {m for name, m in modes(directory).items() if name.startswith(DATABASE)}
        assert database_modes == {0o600}
