"""Loads the logits processors of `--logits-processors` when the worker starts.

A processor is a class that is made once, with a `ProcessorContext`. For each sequence that may use
it, the worker calls `new_req_logits_processor(params)`, which returns a function for that sequence,
or None to leave the sequence alone. The method has the name and the argument of vLLM's.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from taco_proto.errors import ConfigurationError
from taco_proto.logits_processors import MAX_PROCESSOR_NAME_CHARS, MAX_PROCESSORS, LogitsProcessor
from taco_proto.sampling_params import SamplingParams

_METHOD = "new_req_logits_processor"
_FLAG = "--logits-processors"


@dataclass(frozen=True, slots=True)
class ProcessorContext:
    """What a processor gets when it is made.

    Attributes:
        model_directory: the files of the checkpoint, such as its tokenizer.
        vocab_size: of the logits.
        device: of the logits.
    """

    model_directory: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    device: torch.device


class LoadedProcessor(Protocol):
    """A processor that serves many sequences."""

    def new_req_logits_processor(self, params: SamplingParams) -> LogitsProcessor | None:
        """A function for one sequence, whose arguments are in `params.extra_args`; None: the
        sequence does not use this processor.

        Raises:
            ValueError: the arguments are invalid. The text is for the client.
        """
        ...


def import_processors(specs: Sequence[str | type]) -> dict[str, Any]:
    """The classes of some processors, by name.

    Args:
        specs: `module:class`, or the class itself.

    Raises:
        ConfigurationError: a module or class does not exist or cannot be imported.
    """
    if len(specs) > MAX_PROCESSORS:
        raise ConfigurationError(f"{_FLAG} takes at most {MAX_PROCESSORS} processors")
    found: dict[str, Any] = {}
    for spec in specs:
        name = spec if isinstance(spec, str) else f"{spec.__module__}:{spec.__qualname__}"
        if len(name) > MAX_PROCESSOR_NAME_CHARS:
            raise ConfigurationError(f"{_FLAG} {name:.60}…: the name is too long")
        if name in found:
            raise ConfigurationError(f"{_FLAG} {name} is given twice")
        found[name] = _import(spec) if isinstance(spec, str) else spec
    return found


def make_processors(
    classes: Mapping[str, Any], context: ProcessorContext
) -> dict[str, LoadedProcessor]:
    """One object of each class, by name.

    Raises:
        ConfigurationError: a class cannot be made, or lacks `new_req_logits_processor`.
    """
    made: dict[str, LoadedProcessor] = {}
    for name, processor_class in classes.items():
        try:
            processor = processor_class(context)
        except Exception as error:
            raise ConfigurationError(f"{_FLAG} {name}: {_described(error)}") from error
        if not callable(getattr(processor, _METHOD, None)):
            raise ConfigurationError(f"{_FLAG} {name}: the class has no method {_METHOD}")
        made[name] = processor
    return made


def _import(name: str) -> Any:
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise ConfigurationError(f"{_FLAG} {name!r}: give MODULE:CLASS")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # the module's own code may raise anything
        raise ConfigurationError(f"{_FLAG} {name}: {_described(error)}") from error
    if not callable(found):
        raise ConfigurationError(f"{_FLAG} {name}: {path} is not a class")
    return found


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
