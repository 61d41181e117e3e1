"""TACO's Python API: offline inference with `LLM` and `AsyncLLMEngine`.

Names are imported at their first use, so that `import taco_llm` does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taco_llm.args.engine_args import AsyncEngineArgs, EngineArgs
    from taco_llm.async_engine import AsyncLLMEngine
    from taco_llm.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from taco_llm.guided_options import GuidedDecodingRequest, LLMGuidedOptions
    from taco_llm.llm import LLM
    from taco_llm.lora_request import LoRARequest
    from taco_llm.outputs import CompletionOutput, RequestOutput
    from taco_llm.prompts import PromptInputs, TextPrompt, TokensPrompt
    from taco_proto.sampling_params import SamplingParams
    from taco_proto.structured_outputs import GuidedDecodingParams, StructuredOutputsParams
    from taco_worker.models.registry import ModelRegistry

    __version__: str

_MODULES = {
    "LLM": "taco_llm.llm",
    "AsyncEngineArgs": "taco_llm.args.engine_args",
    "AsyncLLMEngine": "taco_llm.async_engine",
    "BeamSearchOutput": "taco_llm.beam_search",
    "BeamSearchParams": "taco_llm.beam_search",
    "BeamSearchSequence": "taco_llm.beam_search",
    "CompletionOutput": "taco_llm.outputs",
    "EngineArgs": "taco_llm.args.engine_args",
    "GuidedDecodingParams": "taco_proto.structured_outputs",
    "GuidedDecodingRequest": "taco_llm.guided_options",
    "LLMGuidedOptions": "taco_llm.guided_options",
    "LoRARequest": "taco_llm.lora_request",
    "ModelRegistry": "taco_worker.models.registry",
    "PromptInputs": "taco_llm.prompts",
    "RequestOutput": "taco_llm.outputs",
    "SamplingParams": "taco_proto.sampling_params",
    "StructuredOutputsParams": "taco_proto.structured_outputs",
    "TextPrompt": "taco_llm.prompts",
    "TokensPrompt": "taco_llm.prompts",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "EngineArgs",
    "GuidedDecodingParams",
    "GuidedDecodingRequest",
    "LLMGuidedOptions",
    "LoRARequest",
    "ModelRegistry",
    "PromptInputs",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("taco-llm")
    elif name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
