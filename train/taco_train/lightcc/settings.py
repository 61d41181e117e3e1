"""Settings of LightCC, from the environment."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from taco_train.collective.levels import Levels
from taco_train.lightcc.variables import PREFIX, VARIABLES, WITHOUT_MEANING, VariableError

logger = logging.getLogger(__name__)
_MAX_TEXT = 40
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user has set; None: the cost model decides.

    Attributes: the variable of each is in `VARIABLES`, with its unit.
    """

    two_level: bool | None = None
    intra_size: int | None = None
    racks: Mapping[str, str] = field(default_factory=dict)
    two_level_max_bytes: int = 2**30
    compression: str = "none"
    top_k: bool | None = None
    top_k_ratio: float = 0.01
    top_k_min_bytes: int = 2**20
    top_k_fp16: bool = False
    top_k_momentum: float = 0.0
    top_k_warmup_steps: int = 0
    fusion_bytes: int | None = None
    cycle_seconds: float = 1e-3
    cache_capacity: int = 1024
    stall_check_disabled: bool = False
    stall_warn_seconds: float = 60.0
    stall_fail_seconds: float = 0.0
    timeout_seconds: float = 30.0
    timeline: str = ""
    timeline_marks_cycles: bool = False
    log_level: str | None = None

    @property
    def levels(self) -> Levels:
        """In which groups ranks reduce, one inside the other."""
        return Levels(intra_size=self.intra_size, racks=self.racks)


_DEFAULTS = Settings()


def settings_from(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the variables.

    Args:
        environment: None: the process's.

    Raises:
        VariableError: one line that names the variable, its value and what is allowed.
    """
    environment = os.environ if environment is None else environment
    values = {}
    for variable in VARIABLES:
        text = environment.get(variable.name, "").strip()
        if not text:
            continue
        try:
            values[variable.field] = variable.read(text)
        except ValueError as allowed:
            raise VariableError(f"{variable.name} is {text!r}; it must be {allowed}") from None
    return Settings(**values)


def agreed_values(settings: Settings) -> dict[str, str]:
    """The settings that must be equal on all ranks and are not the defaults, by variable."""
    found = {}
    for variable in VARIABLES:
        value = getattr(settings, variable.field)
        if variable.is_agreed and value != getattr(_DEFAULTS, variable.field):
            text = str(int(value)) if isinstance(value, bool) else str(value)
            if isinstance(value, Mapping):  # the order of a file's lines means nothing
                text = str(sorted(value.items()))
            # All ranks read those of all: a file's content must be short.
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            found[variable.name] = text if len(text) <= _MAX_TEXT else f"a file of hash {digest}"
    return found


def start_settings() -> Settings:
    """Read this process's variables, and start its log; those without meaning here are logged.

    Raises:
        VariableError: see `settings_from`.
    """
    settings = settings_from()
    if settings.log_level is not None:
        _start_log(settings.log_level)
    note_unused(os.environ)
    return settings


def note_unused(environment: Mapping[str, str]) -> None:
    """Log the variables that change nothing."""
    known = [one.name for one in VARIABLES if one.name.startswith(PREFIX)]
    for name in sorted(environment):
        if name in WITHOUT_MEANING:
            logger.info("%s has no effect: %s", name, WITHOUT_MEANING[name])
        elif name.startswith(PREFIX) and name not in known:
            logger.warning("%s is unknown; known: %s", name, ", ".join(known))


def _start_log(level: str) -> None:
    """Messages of the package from this level on, to where the script logs or standard error."""
    package = logging.getLogger(__name__.partition(".")[0])
    package.setLevel(_LEVELS[level])
    if not package.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s [%(name)s] %(message)s"))
        package.addHandler(handler)
