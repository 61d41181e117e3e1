"""Converts arguments to command lines, for services on other nodes of a Ray cluster."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taco_llm.args import lora_modules
from taco_llm.args.draft_worker_args import DraftWorkerArgs
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import DRAFTER, WORKER, flag_fields
from taco_llm.args.model_location import is_model, locate_adapter
from taco_llm.args.speculation_args import NGRAM

_PATHS = ("download_dir", "kv_disk_path", "lookahead_cache_config_dir", "quantization_param_path")
_URI = "tensorizer_uri"  # an option of model_loader_extra_config


def worker_command(engine: EngineArgs, scheduler: str, name: str) -> list[str]:
    """The command line `worker …` for a worker of `engine`. Paths become absolute."""
    # Clients know a model without --served-model-name by its path as given, not as absolute path.
    names = engine.served_model_name or (engine.model,)
    engine = engine.with_updates(**_absolute_paths(engine), served_model_name=names)
    flags = _flags(engine, WORKER, engine.given)
    return [WORKER, f"--scheduler={scheduler}", f"--name={name}", *flags]


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
    drafter = replace(drafter, **_absolute_paths(drafter))
    return [DRAFTER, f"--scheduler={scheduler}", f"--name={name}", *_flags(drafter)]


def _absolute_paths(args: EngineArgs | DraftWorkerArgs) -> dict[str, Any]:
    """The arguments that hold paths, which then do not depend on the working directory."""
    changes: dict[str, Any] = {}
    for item in flag_fields(type(args)):
        value = getattr(args, item.name)
        if value is None:
            continue
        if item.name in _PATHS:
            changes[item.name] = _absolute(value)
        elif item.name in ("model", "speculative_model") and value != NGRAM:
            changes[item.name] = _portable(value)
        elif item.name == "merge_lora":
            changes[item.name] = locate_adapter(value)
        elif item.name == "lora_modules":
            pairs = map(lora_modules.split, value)
            changes[item.name] = tuple(f"{name}={locate_adapter(path)}" for name, path in pairs)
        elif item.name == "model_loader_extra_config" and isinstance(value.get(_URI), str):
            changes[item.name] = {**value, _URI: _portable_uri(value[_URI])}
    return changes


def _absolute(path: str) -> str:
    # Links stay: a file of the hub's cache is a link to one without the suffix .gguf.
    return os.path.abspath(Path(path).expanduser())


def _portable(model: str) -> str:
    """The absolute path of a file or directory; a hub id or a bundled model's name unchanged."""
    return _absolute(model) if is_model(Path(model).expanduser()) else model


def _portable_uri(uri: str) -> str:
    """The absolute path of a file; an address such as s3://bucket/file unchanged."""
    path = uri.removeprefix("file://")
    return uri if "://" in path else _absolute(path)


def _flags(
    args: EngineArgs | DraftWorkerArgs, service: str | None = None, given: Collection[str] = ()
) -> list[str]:
    """The flags of `service` (None: all) whose values differ from the default, or are in `given`.

    A value that is given may mean more than the default: see `EngineArgs.given`.
    """
    flags: list[str] = []
    for item in flag_fields(type(args)):
        value = getattr(args, item.name)
        is_read = service is None or service in item.metadata["flag"].services
        if not is_read or (value == item.default and item.name not in given):
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
