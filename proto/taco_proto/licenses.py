"""The license state of a worker, and the error of clients if no worker has a license."""

import enum
from dataclasses import dataclass

# Machine-readable code of the rejection, in OpenAI's form, and its text for clients.
LICENSE_INVALID = "license_invalid"
LICENSE_MESSAGE = (
    "No worker has a valid license, so no new requests are taken. The operator has to upload a "
    "license for the workers to the license server, or to make that server reachable."
)

MAX_REASON_CHARS = 500


class LicenseState(enum.IntEnum):
    """Values are those of `LicenseState` in scheduler.proto.

    Attributes:
        VALID: the worker has a license, or needs none.
        ASKED: the license server has not answered yet, within its time limit.
        MISSING: the worker has no license.
    """

    VALID = 0
    ASKED = 1
    MISSING = 2


@dataclass(frozen=True, slots=True)
class WorkerLicense:
    """The license state at one moment. Running requests finish in any case.

    Attributes:
        reason: for operators: why the license is missing.
    """

    state: LicenseState = LicenseState.VALID
    reason: str = ""

    @property
    def is_valid(self) -> bool:
        return self.state is LicenseState.VALID


NEEDS_NO_LICENSE = WorkerLicense()
