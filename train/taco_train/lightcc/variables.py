"""The environment variables of LightCC and Horovod: names, meanings, and how each is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from taco_train.cluster.racks import read_racks

PREFIX = "LIGHT_"  # of LightCC's own; the others are Horovod's
_MAX_SECONDS = 1_000_000  # 11 days: sockets and selectors of Python take no more than 24


class VariableError(ValueError):
    """A variable has a value that it cannot have."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable.

    Attributes:
        name: in the environment.
        field: of `Settings`.
        read: makes the field's value of the text; raises ValueError with what is allowed.
        default: as the documentation shows it.
        meaning: one sentence.
    """

    name: str
    field: str
    read: Callable[[str], Any]
    default: str
    meaning: str

    @property
    def is_agreed(self) -> bool:
        """Whether ranks that set it differently would call different collectives."""
        return self.name.startswith(PREFIX) or self.field == "fusion_bytes"


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("0 or 1")


def _integer(lowest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise ValueError(f"an integer from {lowest}")
        return int(text)

    return read


def _number(lowest: float, highest: int, scale: float = 1.0) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not lowest <= value <= highest:
            raise ValueError(f"a number from {lowest:g} to {highest}")
        return value * scale

    return read


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise ValueError("a number above 0, 1 at most")
    return value


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ValueError("a number from 0, below 1")
    return value


def _choice(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in values:
            raise ValueError(", ".join(values[:-1]) + " or " + values[-1])
        return text

    return read


def _level(text: str) -> str:
    return _choice("trace", "debug", "info", "warning", "error", "fatal")(text.lower())


def _timeline(text: str) -> str:
    return "" if text == "DYNAMIC" else text


VARIABLES = (
    Variable(
        "LIGHT_2D_ALLREDUCE",
        "two_level",
        _flag,
        "1 where ranks share hosts, otherwise the cost model decides",
        "Whether ranks of a host first add their gradients, so that each byte crosses the network "
        "once a host.",
    ),
    Variable(
        "LIGHT_INTRA_SIZE",
        "intra_size",
        _integer(1),
        "ranks of a host",
        "Ranks in a group of the inner level: consecutive ranks, which must share a host.",
    ),
    Variable(
        "LIGHT_TOPOLOGY_FILE",
        "racks",
        read_racks,
        "none",
        "File with a line `HOST RACK` for each host: with several racks, sums of a rack are formed "
        "before they cross to other racks.",
    ),
    Variable(
        "LIGHT_HIERARCHICAL_THRESHOLD",
        "two_level_max_bytes",
        _integer(0),
        str(2**30),
        "Largest buffer, in bytes, that is reduced in two levels.",
    ),
    Variable(
        "LIGHT_COMPRESSION",
        "compression",
        _choice("none", "fp16", "bf16", "auto"),
        "none",
        "Format of gradients on the network. none: unchanged; fp16, bf16: 16 bits; auto: the cost "
        "model chooses unchanged, fp16 or TopK for each buffer.",
    ),
    Variable(
        "LIGHT_TOPK_ALLREDUCE",
        "top_k",
        _flag,
        "LIGHT_COMPRESSION decides",
        "Whether only the largest gradients cross the network; the rest is added to the next "
        "step's.",
    ),
    Variable(
        "LIGHT_TOPK_RATIO", "top_k_ratio", _ratio, "0.01", "Share of gradients that TopK sends."
    ),
    Variable(
        "LIGHT_TOPK_THRESHOLD",
        "top_k_min_bytes",
        _integer(0),
        str(2**20),
        "Smallest buffer, in bytes, that TopK compresses.",
    ),
    Variable(
        "LIGHT_TOPK_FP16", "top_k_fp16", _flag, "0", "Whether TopK sends its values as float16."
    ),
    Variable(
        "LIGHT_TOPK_MOMENTUM",
        "top_k_momentum",
        _factor,
        "0",
        "Factor of TopK's momentum correction, in place of the optimizer's momentum; 0: none.",
    ),
    Variable(
        "LIGHT_TOPK_WARMUP_STEPS",
        "top_k_warmup_steps",
        _integer(0),
        "0",
        "Steps in which TopK's ratio falls from 0.25 to LIGHT_TOPK_RATIO.",
    ),
    Variable(
        "HOROVOD_FUSION_THRESHOLD",
        "fusion_bytes",
        _integer(0),
        "the cost model decides",
        "Largest buffer, in bytes, that small tensors share; 0: each tensor has its buffer.",
    ),
    Variable(
        "HOROVOD_CYCLE_TIME",
        "cycle_seconds",
        _number(0, 60_000, 1e-3),
        "1",
        "Milliseconds between two messages of a rank that say which tensors are ready.",
    ),
    Variable(
        "HOROVOD_CACHE_CAPACITY",
        "cache_capacity",
        _integer(0),
        "1024",
        "Tensors whose descriptions all ranks remember, so that messages hold one bit for each.",
    ),
    Variable(
        "HOROVOD_STALL_CHECK_DISABLE",
        "stall_check_disabled",
        _flag,
        "0",
        "Whether nothing is logged when only some ranks submit a tensor.",
    ),
    Variable(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "stall_warn_seconds",
        _number(0, _MAX_SECONDS),
        "60",
        "Seconds until a tensor that only some ranks submitted is logged.",
    ),
    Variable(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "stall_fail_seconds",
        _number(0, _MAX_SECONDS),
        "0",
        "Seconds until such a tensor is an error on every rank; 0: never.",
    ),
    Variable(
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "timeout_seconds",
        _number(0.1, _MAX_SECONDS),
        "30",
        "Seconds without a byte from a rank, inside a collective, after which it counts as lost.",
    ),
    Variable(
        "HOROVOD_TIMELINE",
        "timeline",
        _timeline,
        "none",
        "File for a trace of every collective, in Chrome's format; DYNAMIC: `hvd.start_timeline` "
        "will name it.",
    ),
    Variable(
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "timeline_marks_cycles",
        _flag,
        "0",
        "Whether the trace has a mark for each message of the coordinator.",
    ),
    Variable(
        "HOROVOD_LOG_LEVEL",
        "log_level",
        _level,
        "as the script has set up logging",
        "Least level of the messages on standard error: trace, debug, info, warning, error or "
        "fatal.",
    ),
)

# Horovod reads these; here they decide nothing.
WITHOUT_MEANING: Mapping[str, str] = {
    "HOROVOD_MPI_THREADS_DISABLE": "MPI only starts the ranks",
    "HOROVOD_CONTROLLER": "ranks always negotiate over TCP",
    "HOROVOD_CPU_OPERATIONS": "CPU collectives are TACO Train's",
    "HOROVOD_GPU_OPERATIONS": "GPU collectives are NCCL's",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "LIGHT_2D_ALLREDUCE decides",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "LIGHT_2D_ALLREDUCE decides",
    "HOROVOD_AUTOTUNE": "the cost model decides",
    "HOROVOD_AUTOTUNE_LOG": "the cost model decides",
    "HOROVOD_NUM_NCCL_STREAMS": "each level has one stream",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "buffers are always copied together",
    "HOROVOD_THREAD_AFFINITY": "the scheduler of the system places the threads",
    "HOROVOD_DYNAMIC_PROCESS_SETS": "process sets are always dynamic",
}
