"""Arguments of logging, which every service has: format and level."""

from dataclasses import dataclass

from taco_common.logging import JSON, LEVELS, TEXT, LogConfig
from taco_llm.args.flags import flag
from taco_proto.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogArgs:
    """Arguments of logging.

    Raises:
        ConfigurationError: a value is not one of the choices.
    """

    log_format: str = flag(
        "Format of log lines: text for people, json for log collectors (one object per line).",
        default=TEXT,
        choices=(TEXT, JSON),
    )
    log_level: str = flag(
        "Minimum level of log lines. debug also shows how services start and stop.",
        default="info",
        choices=LEVELS,
    )

    def __post_init__(self) -> None:
        for name, choices in (("log_format", (TEXT, JSON)), ("log_level", LEVELS)):
            value = getattr(self, name)
            if value not in choices:
                raise ArgumentError(f"{name} must be one of {', '.join(choices)}, got {value!r}")

    def log_config(self) -> LogConfig:
        return LogConfig(self.log_format, self.log_level)
