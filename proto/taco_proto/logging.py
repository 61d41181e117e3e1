"""Logging of every service: one line an event, to standard error."""

import logging
import sys

FORMAT = "%(asctime)s %(levelname)s [%(name)s] %(message)s"


def configure_logging(service: str, level: int | str = logging.INFO) -> logging.Logger:
    """Sets up the root logger once a process; returns the service's logger."""
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
        logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(level)
    return logging.getLogger(f"taco.{service}")
