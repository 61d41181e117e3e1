"""Logging of every service: one event a line on standard error, as text or as JSON.

A line is made in two steps: a log record becomes an entry, a dictionary with fixed fields, and the
entry becomes text or JSON. A supervisor's children write JSON, and the supervisor writes what its
user asked for.

Fields of an entry: `time` (ISO 8601, milliseconds, zone), `level`, `service`, `logger` and
`message`; optionally `exception` (a traceback) and `event` with `data`, an object
whose fields belong to that kind of event (`REQUEST`, say).
"""

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any

from taco_proto.log_text import escape

TEXT, JSON = "text", "json"
LEVELS = ("debug", "info", "warning", "error", "critical")

# Kinds of events; see `event`.
REQUEST, READY, MODEL_LOADED, PROGRESS = "request", "ready", "model_loaded", "progress"

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How a service logs.

    Attributes:
        format: text or json.
        level: the least severe level that is written, one of `LEVELS`.
        is_supervised: a supervisor reads the lines; it also shows progress.
    """

    format: str = TEXT
    level: str = "info"
    is_supervised: bool = False


class ServiceHandler(logging.Handler):
    """Writes the records of one service to standard error."""

    def __init__(self, service: str, config: LogConfig) -> None:
        super().__init__()
        self.config = config
        self.setFormatter(_Formatter(service, config.format))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write_line(self.format(record))
        except Exception:
            self.handleError(record)


def write_line(line: str) -> None:
    """Writes one line, or several at once, to standard error, above a progress bar."""
    if "tqdm" in sys.modules and sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)
        return
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def configure_logging(service: str, config: LogConfig | None = None) -> logging.Logger:
    """Sets up the root logger; returns the service's logger.

    Args:
        config: None keeps the configuration of an earlier call; the default if there was none.
    """
    root = logging.getLogger()
    handlers = [handler for handler in root.handlers if isinstance(handler, ServiceHandler)]
    if config is not None or not root.handlers:
        for handler in handlers:
            root.removeHandler(handler)
        config = config or LogConfig()
        root.addHandler(ServiceHandler(service, config))
        level = logging.getLevelName(config.level.upper())
        root.setLevel(max(level, logging.INFO))  # debug lines of libraries are not wanted
        logging.getLogger("taco").setLevel(level)
        if config.format == JSON:
            _capture_warnings_and_exceptions()
    elif not handlers:  # handlers of another program, such as a test
        root.setLevel(logging.INFO)
    return logging.getLogger(f"taco.{service}")


def logs_json() -> bool:
    """Whether this process was configured to log JSON."""
    handlers = logging.getLogger().handlers
    return any(isinstance(h, ServiceHandler) and h.config.format == JSON for h in handlers)


def is_supervised() -> bool:
    """Whether a supervisor on this machine reads what this process logs."""
    handlers = logging.getLogger().handlers
    return any(isinstance(h, ServiceHandler) and h.config.is_supervised for h in handlers)


def event(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The `extra` of a log call that reports an event which programs read."""
    return {"event": kind, "data": data}


def make_entry(
    service: str, level: str, logger: str, message: str, time: float | None = None
) -> Entry:
    """An entry for a message that did not come from a log record; `time` is now by default."""
    return {
        "time": _iso(datetime.now().timestamp() if time is None else time),
        "level": level,
        "service": service,
        "logger": logger,
        "message": message,
    }


def parse_entry(line: bytes, service: str) -> Entry:
    """The entry in a line of JSON; any other line becomes the message of a warning."""
    try:
        entry = json.loads(line)
        if isinstance(entry, dict) and all(
            isinstance(entry.get(name), str) for name in ("time", "level", "logger", "message")
        ):
            return entry
    except (ValueError, RecursionError):
        pass
    text = line.decode(errors="backslashreplace").rstrip()
    return make_entry(service, "WARNING", "stderr", text)


def render(entry: Entry, log_format: str) -> str:
    """One line of JSON, or text: one line, and a traceback in indented lines below it."""
    if log_format == JSON:
        return json.dumps(entry, default=str)
    time, level, logger = entry["time"], entry["level"], entry["logger"]
    line = f"{time} {level} [{logger}] {escape(entry['message'])}"
    for part in str(entry.get("exception", "")).splitlines():
        line += f"\n    {escape(part)}"
    return line


class _Formatter(logging.Formatter):
    def __init__(self, service: str, log_format: str) -> None:
        super().__init__()
        self._service = service
        self._format = log_format

    def format(self, record: logging.LogRecord) -> str:
        entry = make_entry(
            self._service, record.levelname, record.name, record.getMessage(), record.created
        )
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if (kind := getattr(record, "event", None)) is not None:
            entry["event"], entry["data"] = kind, getattr(record, "data", {})
        return render(entry, self._format)


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time).astimezone().isoformat(timespec="milliseconds")


def _capture_warnings_and_exceptions() -> None:
    """Logs warnings and uncaught exceptions as entries, too."""
    logging.captureWarnings(True)
    logger = logging.getLogger("taco")

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if issubclass(kind, Exception):
            logger.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, traceback))

    sys.excepthook = hook
