"""Whether a worker may take new requests, and what clients are told where none may."""

import enum
from dataclasses import dataclass

# OpenAI's machine-readable code of a refusal, and its text: no address, and what is to be done.
LICENSE_INVALID = "license_invalid"
LICENSE_MESSAGE = (
    "No worker has a valid license, so no new requests are taken. The operator has to upload a "
    "license for the workers to the license server, or to make that server reachable."
)

MAX_REASON_CHARS = 500


class LicenseState(enum.IntEnum):
    """Values are those of `LicenseState` in scheduler.proto.

    Attributes:
        VALID: it has a license, or needs none.
        ASKED: the license server has not answered yet, and still has time to.
        MISSING: it has none.
    """

    VALID = 0
    ASKED = 1
    MISSING = 2


@dataclass(frozen=True, slots=True)
class WorkerLicense:
    """Of one moment. Requests that have begun finish in any case.

    Attributes:
        reason: for operators: why it has none.
    """

    state: LicenseState = LicenseState.VALID
    reason: str = ""

    @property
    def is_valid(self) -> bool:
        return self.state is LicenseState.VALID


NEEDS_NO_LICENSE = WorkerLicense()
