"""Converts arguments to command lines, for services on other nodes of a Ray cluster."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from taco_llm.args.draft_worker_args import DraftWorkerArgs
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import DRAFTER, WORKER, flag_fields
from taco_llm.args.model_location import locate_model
from taco_llm.args.speculation_args import NGRAM

_DIRECTORIES = ("download_dir", "kv_disk_path", "lookahead_cache_config_dir")

Arguments = TypeVar("Arguments", EngineArgs, DraftWorkerArgs)


def worker_command(engine: EngineArgs, scheduler: str, name: str) -> list[str]:
    """The command line `worker …` for a worker of `engine`. Paths become absolute."""
    # Clients know a model without --served-model-name by its path as given, not as absolute path.
    names = engine.served_model_name or (engine.model,)
    engine = replace(_with_absolute_paths(engine), served_model_name=names)
    return [WORKER, f"--scheduler={scheduler}", f"--name={name}", *_flags(engine, WORKER)]


def draft_worker_command(engine: EngineArgs, scheduler: str, name: str) -> list[str] | None:
    """The command line `draft-worker …` for the draft model of `engine`; None without one.

    Raises:
        ConfigurationError: the draft model cannot be found.
    """
    config = engine.drafter_config()
    if config is None:
        return None
    assert engine.speculative_model is not None
    drafter = DraftWorkerArgs(
        speculative_model=engine.speculative_model,
        quantization=engine.speculative_model_quantization,
        draft_backend=engine.draft_backend,
        download_dir=engine.download_dir,
        load_format=config.model.load_format,
        num_threads=engine.num_threads,
        max_num_seqs=engine.max_num_seqs,
    )
    drafter = _with_absolute_paths(drafter)
    return [DRAFTER, f"--scheduler={scheduler}", f"--name={name}", *_flags(drafter)]


def _with_absolute_paths(args: Arguments) -> Arguments:
    """`args` with absolute paths, so that they do not depend on the working directory."""
    changes: dict[str, Any] = {}
    for item in flag_fields(type(args)):
        value = getattr(args, item.name)
        if value is None:
            continue
        if item.name in _DIRECTORIES:
            changes[item.name] = os.path.abspath(Path(value).expanduser())
        elif item.name in ("model", "speculative_model") and value != NGRAM:
            changes[item.name] = _portable(value)
    return replace(args, **changes)


def _portable(model: str) -> str:
    """The absolute path of a directory; a hub id or a bundled model's name unchanged."""
    located = Path(locate_model(model))
    return str(located) if located == Path(model).expanduser().resolve() else model


def _flags(args: EngineArgs | DraftWorkerArgs, service: str | None = None) -> list[str]:
    """The flags of `service` (None: all) whose values differ from the default."""
    flags: list[str] = []
    for item in flag_fields(type(args)):
        value = getattr(args, item.name)
        is_read = service is None or service in item.metadata["flag"].services
        if not is_read or value == item.default:
            continue
        flag = "--" + item.name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif isinstance(value, tuple):
            flags += [f"{flag}={entry}" for entry in value]
        elif isinstance(value, Mapping):
            flags.append(f"{flag}={json.dumps(value)}")
        else:
            flags.append(f"{flag}={value}")
    return flags
