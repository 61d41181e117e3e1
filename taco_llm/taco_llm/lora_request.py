"""The LoRA adapter of offline requests, as vLLM's programs name it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taco_llm.argument_checks import check_type
from taco_proto.errors import InvalidParameterError

_PARAM = "lora_request"


@dataclass(frozen=True)
class LoRARequest:
    """Names one of the adapters of `lora_modules`.

    Attributes:
        lora_name: its name there.
        lora_int_id: a number that vLLM's programs give; it has no effect.
        lora_path: its path; empty, or that of `lora_modules`.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""


def adapter_of(request: LoRARequest | None, loaded: Mapping[str, str]) -> str:
    """The name of a request's adapter; empty: the base model.

    Args:
        loaded: paths of the loaded adapters, by name.

    Raises:
        InvalidParameterError: it is no loaded adapter.
    """
    if request is None:
        return ""
    check_type(_PARAM, request, LoRARequest)
    name, path = request.lora_name, request.lora_path
    if name not in loaded:
        names = ", ".join(loaded) or "it has none"
        raise InvalidParameterError(
            f"the adapter {name!r:.100} is not one of those of lora_modules ({names}): "
            "they are loaded at the start, such as with lora_modules={'sql': 'path/of/adapter'}",
            _PARAM,
        )
    if path and not _is_same(path, loaded[name]):
        raise InvalidParameterError(
            f"the adapter {name!r:.100} is that of {loaded[name]!r}, not of {path!r:.200}", _PARAM
        )
    return name


def _is_same(path: str, other: str) -> bool:
    return path == other or Path(path).expanduser().resolve() == Path(other).expanduser().resolve()
