"""API keys in environment variables, for the gateway and for clients."""

from collections.abc import Mapping

API_KEY_VARIABLE = "TACO_API_KEY"
VLLM_API_KEY_VARIABLE = "VLLM_API_KEY"  # holds one key, commas included


def keys_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The API keys in environment variables; vLLM's variable counts only if TACO's is empty."""
    keys = tuple(key for key in environment.get(API_KEY_VARIABLE, "").split(",") if key)
    other = environment.get(VLLM_API_KEY_VARIABLE, "")
    return keys or ((other,) if other else ())
