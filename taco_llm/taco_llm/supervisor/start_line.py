"""The start line, which `taco_llm serve` prints when it is ready: model, device, address."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taco_llm import __version__
from taco_worker.models.config import ModelConfig
from taco_worker.startup_checks import num_parameters

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "int8": "int8"}
# Of what is multiplied with the codes of weights.
_ACTIVATIONS = {"int8": "8-bit", "bfloat16": "bf16", "bfloat16/int8": "8-bit and bf16"}
_ACRONYMS = {"aqlm", "awq", "fp8", "gguf", "gptq", "mxfp4", "qqq"}
# The kind of codes whose name says nothing of their size.
_KINDS = {"table16": "4-bit"}
# Of KV caches that differ from the computation's dtype.
_KV_DTYPES = {"int8": "int8", "float8_e4m3fn": "fp8 e4m3", "float8_e5m2": "fp8 e5m2"}
_INSTRUCTION_SETS = {
    "amx": "AMX",
    "avx512_bf16": "AVX-512 BF16",
    "avx512": "AVX-512",
    "avx2": "AVX2",
}
_SCALES = ((10**9, "B"), (10**6, "M"), (10**3, "k"))


@dataclass(frozen=True, slots=True)
class StartLine:
    """The fields of the start line.

    Attributes:
        model: architecture and size, such as "Qwen2 0.5B".
        device: format of the weights, and device, such as "bf16 on AMX × 2"; empty if unknown.
        num_workers: number of workers that serve.
        kv_tokens: total capacity of the workers' KV caches in tokens; 0 if unknown.
        kv_dtype: that of 8-bit KV caches, such as "int8"; otherwise empty.
        url: the address at which clients reach the API.
        seconds: duration of the start.
    """

    model: str
    device: str
    num_workers: int
    kv_tokens: int
    kv_dtype: str
    url: str
    seconds: float

    def __str__(self) -> str:
        parts = [f"TACO {__version__}", self.model]
        if self.device:
            parts.append(self.device)
        if self.num_workers > 1:
            parts.append(f"{self.num_workers} workers")
        if self.kv_tokens:
            name = f"{self.kv_dtype} KV" if self.kv_dtype else "KV"
            parts.append(f"{name} {_scaled(self.kv_tokens)} tokens")
        return " · ".join([*parts, self.url, f"ready in {self.seconds:.1f} s"])


def start_line(
    model: ModelConfig, loaded: Sequence[Mapping[str, Any]], url: str, seconds: float
) -> StartLine:
    """The start line of a service.

    Args:
        loaded: the data of each worker's `MODEL_LOADED` event; empty for a worker without one.
    """
    known = [worker for worker in loaded if worker]
    return StartLine(
        model=model_label(model),
        device=device_label(known[0]["description"], _method(model)) if known else "",
        num_workers=len(loaded),
        kv_tokens=sum(worker["kv_tokens"] for worker in known),
        kv_dtype=_KV_DTYPES.get(known[0]["kv_dtype"], "") if known else "",
        url=url,
        seconds=seconds,
    )


def model_label(model: ModelConfig) -> str:
    """Architecture and number of parameters, such as "Qwen2 0.5B"."""
    name = re.sub("(ForCausalLM|LMHeadModel)$", "", model.architecture)
    return f"{name} {_scaled(num_parameters(model.plan), billions_from=10**8)}"


def device_label(description: str, method: str | None = None) -> str:
    """A short form of a worker's device description, such as "bf16 on AMX × 2".

    Args:
        description: the worker's text, such as "amx, 2 threads, bfloat16, int4 codes, int8
            activations" or "NVIDIA H100, bfloat16, attention by triton".
        method: of the quantization of the model's weights; None: it is not quantized.
    """
    what, *details = description.split(", ")
    label = _INSTRUCTION_SETS.get(what, what)
    for detail in details:
        if match := re.fullmatch(r"(\d+) threads?", detail):
            label += f" × {match[1]}"
    weights = _weights_label(details, method)
    return f"{weights} on {label}" if weights else label


def _weights_label(details: Sequence[str], method: str | None) -> str:
    """The format of the weights: "bf16", or "GPTQ int4, 8-bit activations"; empty if unknown."""
    dtype = next((_DTYPES[detail] for detail in details if detail in _DTYPES), "")
    # What `--quantization int8` and its synonyms make of any checkpoint.
    if dtype == "int8":
        return "int8 weights, 8-bit activations"
    name = method.upper() if method in _ACRONYMS else method
    codes = _ending(details, " codes")
    if codes is None:
        return f"{dtype} from {name}" if dtype and name else dtype
    kinds = "/".join(_KINDS.get(kind, kind) for kind in codes.split("/"))
    label = f"{name} {kinds}" if name else f"{kinds} weights"
    activations = _ending(details, " activations")
    return f"{label}, {_ACTIVATIONS[activations]} activations" if activations else label


def _ending(details: Sequence[str], end: str) -> str | None:
    return next((one.removesuffix(end) for one in details if one.endswith(end)), None)


def _method(model: ModelConfig) -> str | None:
    method = model.quantization or model.online_quantization
    return None if method is None else method.method


def _scaled(number: int, billions_from: int = 10**9) -> str:
    """Shortens a number: 1,234,567 is "1.2M". Values below 10 get one decimal unless it is 0."""
    for scale, letter in _SCALES:
        if number >= (billions_from if scale == 10**9 else scale):
            value = number / scale
            return (
                f"{value:.1f}".removesuffix(".0") + letter if value < 10 else f"{value:.0f}{letter}"
            )
    return str(number)
