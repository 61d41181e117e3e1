"""Errors of licenses, license servers and seats. Each message is one line for people."""


class LicenseError(ValueError):
    """A license, a key or a request file is invalid or cannot be read."""


class SettingError(Exception):
    """The license server cannot start with these settings."""


class LeaseRejectedError(Exception):
    """The license server rejects a request for seats.

    Attributes:
        code: for programs: `no_license`, `expired`, `not_licensed`, `in_use` or `no_seat`.
        holder: the instance that holds the GPU's seat. Only logs may contain it: a client that
            knows the instance can release the seat.
    """

    def __init__(self, code: str, message: str, holder: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.holder = holder


class NotStoredError(Exception):
    """A new license could not be stored; the current license stays in use."""


class LedgerUnavailableError(Exception):
    """The storage of the license and the seats does not answer now."""
