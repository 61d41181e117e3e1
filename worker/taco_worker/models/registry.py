"""The supported architectures by name; a recipe is imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan

# Share of equal letters from which a name is taken for a mistyped one.
_SIMILAR = 0.9

# Makes the plan of one architecture from its config.json.
Recipe = Callable[[ConfigFields, str], ModelPlan]

_RECIPE_MODULES = {
    "BaiChuanForCausalLM": "baichuan",
    "BaichuanForCausalLM": "baichuan",
    "BloomForCausalLM": "bloom",
    "ChatGLMForConditionalGeneration": "chatglm",
    "ChatGLMModel": "chatglm",
    "Cohere2ForCausalLM": "cohere2",
    "CohereForCausalLM": "cohere",
    "DeepseekV2ForCausalLM": "deepseek",
    "DeepseekV3ForCausalLM": "deepseek",
    "FalconForCausalLM": "falcon",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "GemmaForCausalLM": "gemma",
    "Glm4ForCausalLM": "glm4",
    "GlmForCausalLM": "glm",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTJForCausalLM": "gptj",
    "GPTNeoXForCausalLM": "gpt_neox",
    "GraniteForCausalLM": "granite",
    "InternLM2ForCausalLM": "internlm2",
    "InternLMForCausalLM": "internlm",
    "LlamaForCausalLM": "llama",
    "Ministral3ForCausalLM": "ministral3",
    "Mistral3ForConditionalGeneration": "ministral3",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "NemotronForCausalLM": "nemotron",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OPTForCausalLM": "opt",
    "Phi3ForCausalLM": "phi3",
    "PhiForCausalLM": "phi",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "QWenLMHeadModel": "qwen",
    "RWForCausalLM": "falcon",
    "SmolLM3ForCausalLM": "smollm3",
    "StableLMEpochForCausalLM": "stablelm",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "XverseForCausalLM": "xverse",
}


def supported_architectures() -> list[str]:
    return sorted(_RECIPE_MODULES)


def find_recipe(architectures: Sequence[str]) -> tuple[str, Recipe]:
    """Find the first of `architectures` that has a recipe.

    Raises:
        ValueError: none has one; the message names the most similar supported architectures.
    """
    for architecture in architectures:
        if module_name := _RECIPE_MODULES.get(architecture):
            module = import_module(f"taco_worker.models.recipes.{module_name}")
            recipe: Recipe = module.plan
            return architecture, recipe
    named = ", ".join(architectures) or "(config.json names none)"
    similar = [
        one
        for name in architectures
        for one in get_close_matches(name, _RECIPE_MODULES, cutoff=_SIMILAR)
    ]
    shown = similar or supported_architectures()
    hint = "did you mean" if similar else "supported are"
    raise ValueError(f"architecture {named} is not supported; {hint} {', '.join(shown)}")
