"""Arguments of other engines, and of earlier interfaces, that this design has made needless.

They are accepted, so that a command or a program that works elsewhere works here, and each of
them is answered with one log line. What would change the result and is not there yet is no such
argument: it is refused like any unknown one.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from taco_proto.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Superseded:
    """An argument without effect: what stands in its place, and whether its flag takes a value."""

    instead: str
    takes_value: bool = True


_TOKENIZER_POOL = "Prompts are always tokenized in threads beside the event loop."
_REMOTE_CODE = "Code inside a checkpoint is never run: every architecture has a recipe of our own."

SUPERSEDED: Mapping[str, Superseded] = {
    "use_v2_block_manager": Superseded("There is one block manager.", takes_value=False),
    "num_lookahead_slots": Superseded("The scheduler reserves blocks for every token in flight."),
    "num_scheduler_steps": Superseded(
        "The scheduler plans the next step while the current one runs, so that none needs several."
    ),
    "disable_async_output_proc": Superseded(
        "Outputs are always processed beside the step that runs.", takes_value=False
    ),
    "disable_frontend_multiprocessing": Superseded(
        "The gateway is a process of its own; taco_llm.LLM runs in the caller's process.",
        takes_value=False,
    ),
    "worker_use_ray": Superseded(
        "Only taco_llm serve starts workers elsewhere; others dial in.", takes_value=False
    ),
    "ray_workers_use_nsight": Superseded(
        "Start one taco_llm worker under nsys: it dials the same scheduler.", takes_value=False
    ),
    "disable_custom_all_reduce": Superseded(
        "One worker runs the whole model and reduces nothing.", takes_value=False
    ),
    "max_parallel_loading_workers": Superseded("Weights are mapped from disk, not copied."),
    "tokenizer_pool_size": Superseded(_TOKENIZER_POOL),
    "tokenizer_pool_type": Superseded(_TOKENIZER_POOL),
    "tokenizer_pool_extra_config": Superseded(_TOKENIZER_POOL),
    "max_context_len_to_capture": Superseded("max_seq_len_to_capture has taken its place."),
    "trust_remote_code": Superseded(_REMOTE_CODE, takes_value=False),
    "code_revision": Superseded(_REMOTE_CODE),
}

# Arguments that stand in programs written for larger engines, with the values that ask for nothing.
# Any other value asks for something that is not there, and is refused.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "distributed_executor_backend": ("mp", None),
    "enable_lora": (False,),
}


def report_superseded(names: Iterable[str], logger: logging.Logger) -> None:
    """Logs one line for each of `names`, which are superseded arguments."""
    for name in names:
        logger.warning("%s has no effect: %s", name, SUPERSEDED[name].instead)


def drop_superseded(arguments: Mapping[str, Any], logger: logging.Logger) -> dict[str, Any]:
    """`arguments` of a Python call without those that are superseded or ask for nothing.

    Raises:
        ConfigurationError: an argument asks for something that is not there.
    """
    kept: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in SUPERSEDED:
            # None and False ask for nothing, whatever the argument once did.
            if value is not None and value is not False:
                report_superseded([name], logger)
        elif name in NEUTRAL:
            if value not in NEUTRAL[name]:
                raise ConfigurationError(
                    f"{name}={value!r} is not available; only {NEUTRAL[name][0]!r} is"
                )
        else:
            kept[name] = value
    return kept
