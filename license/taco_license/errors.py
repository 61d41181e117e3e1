"""What can go wrong with licenses, for whoever reads the message."""


class LicenseError(ValueError):
    """A license, a key or a request file cannot be used; the text is one line."""


class SettingError(Exception):
    """The server cannot start with these settings; the text is one line."""


class LeaseRefusedError(Exception):
    """A GPU may not serve.

    Attributes:
        code: for machines: `no_license`, `expired`, `not_licensed`, `in_use` or `no_seat`.
        holder: the instance that has the GPU; for logs, since who names it may free the seat.
    """

    def __init__(self, code: str, message: str, holder: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.holder = holder


class NotStoredError(Exception):
    """A license could not be written; the one before holds."""


class AwayError(Exception):
    """What keeps the license and the seats does not answer now."""
