"""A worker's license: requested in background threads, reported to the scheduler."""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from taco_license.addresses import ADDRESS_VARIABLE, any_host_resolves, server_addresses
from taco_proto.config import LicenseConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.licenses import NEEDS_NO_LICENSE, LicenseState, WorkerLicense
from taco_worker.devices.gpu_presence import runs_on_cpu

if TYPE_CHECKING:  # workers without a license do not import the client
    from taco_license.seat_client import LicenseClient

logger = logging.getLogger("taco.worker")

_NOT_ASKED = WorkerLicense(LicenseState.ASKED, "the license server has not been asked yet")


class Licensing:
    """The license of one worker, from before its model is loaded until the worker ends.

    Attributes:
        on_change: called in any thread when `current` changes.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._worker = config
        self._is_needed = config.license is not None and not config.license.only_if_found
        self._state_without_client = _NOT_ASKED
        self._lock = threading.Lock()
        self._start_thread: threading.Thread | None = None
        self._client: LicenseClient | None = None
        self._is_closed = False

    def ask(self) -> None:
        """Request a license in the background; call it in the model's thread before the load.

        Raises:
            ConfigurationError: the worker cannot run on its device.
        """
        config = self._worker.license
        if config is None:
            return
        ids = _license_ids(self._worker.device, config.host_id)
        self._start_thread = threading.Thread(
            target=self._try_to_start, args=(ids, config), name="license", daemon=True
        )
        self._start_thread.start()

    def current(self) -> WorkerLicense:
        """The current state. Until a server is known to exist, no license is needed."""
        if self._client is not None:
            return _license_of(self._client)
        return self._state_without_client if self._is_needed else NEEDS_NO_LICENSE

    def wait_for_answer(self) -> WorkerLicense:
        """Wait for the license server's answer or its timeout, and return the state."""
        if self._is_needed and self._start_thread is not None:
            self._start_thread.join()
        if self._client is not None:
            self._client.wait()
        return self.current()

    def close(self) -> None:
        """Return the seats, if the server accepts them quickly. Idempotent."""
        with self._lock:
            self._is_closed = True
        if self._client is not None:
            self._client.close()

    def _try_to_start(self, ids: tuple[str, ...], config: LicenseConfig) -> None:
        try:
            self._start_client(ids, config)
        except Exception as error:  # without a state the scheduler would wait for this worker
            logger.exception("requesting a license failed")
            reason = f"requesting a license failed: {type(error).__name__}"
            self._state_without_client = WorkerLicense(LicenseState.MISSING, reason)
            self.on_change()

    def _start_client(self, ids: tuple[str, ...], config: LicenseConfig) -> None:
        tls = self._worker.tls
        addresses = server_addresses({ADDRESS_VARIABLE: config.address}, has_tls=tls is not None)
        if config.only_if_found:
            if not any_host_resolves(addresses):
                return
            logger.info("license server found: requesting a license (--license off disables this)")
            self._is_needed = True
        from taco_license.seat_client import LicenseClient, this_instance
        from taco_license.tls import TlsFiles

        client = LicenseClient(
            ids,
            addresses,
            this_instance(),
            start_seconds=config.start_seconds,
            rejection_retry_seconds=config.rejection_retry_seconds,
            tls=None if tls is None else TlsFiles(tls.ca_file, tls.cert_file, tls.key_file),
        )
        client.on_change = lambda: self.on_change()
        with self._lock:
            if self._is_closed:
                return
            client.start()
            self._client = client
        self.on_change()


def _license_ids(device: str, host_id: str) -> tuple[str, ...]:
    if runs_on_cpu(device):
        return (host_id,)
    # Importing torch takes seconds, and a worker on a CPU does so beside other work.
    from taco_worker.devices.selection import find_device
    from taco_worker.license_ids import license_ids

    try:
        return license_ids(find_device(device), host_id)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _license_of(client: "LicenseClient") -> WorkerLicense:
    status = client.status()
    if status.is_valid:  # only this worker logs that the license server does not answer
        return NEEDS_NO_LICENSE
    state = LicenseState.ASKED if status.is_pending else LicenseState.MISSING
    return WorkerLicense(state, status.reason)
