"""The engine's arguments for licenses: whether a worker asks for one, and as whom."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from taco_license.addresses import ADDRESS_VARIABLE, server_addresses
from taco_llm.args.flags import WORKER, flag
from taco_llm.args.kv_tier_args import KVTierArgs
from taco_proto.config import LicenseConfig
from taco_proto.errors import ConfigurationError

_WORKER = (WORKER,)
_ID_VARIABLE = "TACO_LICENSE_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class LicenseArgs(KVTierArgs):
    """Arguments of workers.

    Raises:
        ConfigurationError: a value is out of range or contradicts another.
    """

    license: str = flag(
        "Whether the worker needs a license to take new requests. off: never. auto: if "
        "TACO_LS_ADDR names a license server, or a default server name resolves on this machine. "
        "required: always.",
        _WORKER,
        default="auto",
        choices=("off", "auto", "required"),
    )
    license_id: str | None = flag(
        "Name of a host without GPU in the license; GPUs have their own ids. Default: "
        "TACO_LICENSE_ID, else the host name.",
        _WORKER,
        default=None,
        metavar="ID",
    )
    license_index: int | None = flag(
        "Index of this worker if a host without GPU runs several. Each takes a seat, and asks for "
        "it as ID-INDEX.",
        _WORKER,
        default=None,
        parse=int,
        metavar="INDEX",
    )

    def license_config(self, environment: Mapping[str, str] = os.environ) -> LicenseConfig | None:
        """How the worker asks; None: it does not.

        Raises:
            ConfigurationError: `TACO_LS_ADDR` holds no address, or the id or the index is none.
        """
        if self.license == "off":
            return None
        try:
            server_addresses(environment)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        address = environment.get(ADDRESS_VARIABLE, "").strip()
        return LicenseConfig(
            host_id=self._host_id(environment),
            address=address,
            only_if_found=self.license == "auto" and not address,
        )

    def _host_id(self, environment: Mapping[str, str]) -> str:
        given = self.license_id or environment.get(_ID_VARIABLE)
        if given and not re.fullmatch(r"[A-Za-z0-9][\w.:-]*", given):
            raise ConfigurationError(
                f"license_id may have letters, digits and . _ : - in it, got {given!r}"
            )
        host_id = given or socket.gethostname()
        if self.license_index is None:
            return host_id
        if self.license_index < 0:
            raise ConfigurationError(f"license_index must not be negative: {self.license_index}")
        return f"{host_id}-{self.license_index}"
