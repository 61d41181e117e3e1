"""The engine's arguments for licenses: when a worker needs one, and the host's license id."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from taco_license.addresses import ADDRESS_VARIABLE, server_addresses
from taco_llm.args.flags import WORKER, flag
from taco_llm.args.kv_tier_args import KVTierArgs
from taco_proto.config import LicenseConfig
from taco_proto.errors import ArgumentError

_WORKER = (WORKER,)
_ID_VARIABLE = "TACO_LICENSE_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class LicenseArgs(KVTierArgs):
    """Arguments of workers.

    Raises:
        ConfigurationError: a value is out of range, or two values contradict each other.
    """

    license: str = flag(
        "When the worker needs a license to accept new requests. off: never. auto: if "
        "TACO_LS_ADDR names a license server, or a default server name resolves on this machine. "
        "required: always.",
        _WORKER,
        default="auto",
        choices=("off", "auto", "required"),
    )
    license_id: str | None = flag(
        "Id of a host without GPU in the license; a GPU has its own id. Default: the environment "
        "variable TACO_LICENSE_ID, else the host name.",
        _WORKER,
        default=None,
        metavar="ID",
    )
    license_index: int | None = flag(
        "Index of this worker, from 0, if a host without GPU runs several workers. Each one takes "
        "its own seat under the id ID-INDEX. Default: no index.",
        _WORKER,
        default=None,
        parse=int,
        metavar="INDEX",
        is_advanced=True,
    )

    def license_config(self, environment: Mapping[str, str] = os.environ) -> LicenseConfig | None:
        """How the worker asks for its license; None if it never does.

        Raises:
            ConfigurationError: `TACO_LS_ADDR` is not an address, or the id or index is invalid.
        """
        if self.license == "off":
            return None
        try:
            server_addresses(environment)
        except ValueError as error:
            raise ArgumentError(str(error)) from None
        address = environment.get(ADDRESS_VARIABLE, "").strip()
        return LicenseConfig(
            host_id=self._host_id(environment),
            address=address,
            only_if_found=self.license == "auto" and not address,
        )

    def _host_id(self, environment: Mapping[str, str]) -> str:
        given = self.license_id or environment.get(_ID_VARIABLE)
        if given and not re.fullmatch(r"[A-Za-z0-9][\w.:-]*", given):
            raise ArgumentError(
                "license_id must begin with a letter or digit and contain only letters, digits "
                f"and . _ : -, got {given!r}"
            )
        host_id = given or socket.gethostname()
        if self.license_index is None:
            return host_id
        if self.license_index < 0:
            raise ArgumentError(f"license_index must be at least 0, got {self.license_index}")
        return f"{host_id}-{self.license_index}"
