"""The supported architectures by name; a recipe is imported on first use."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType

from taco_worker.models.external_recipes import (
    ExternalRecipe,
    Recipe,
    check_target,
    installed_recipes,
)

# Shares of equal letters from which a name is taken for a mistyped one, or is worth a look.
_MISTYPED, _SIMILAR = 0.9, 0.6
# Characters of a name that messages show.
_LONGEST_NAME = 100

_ENDS = re.compile("(forcausallm|forconditionalgeneration|lmheadmodel|model)$")

logger = logging.getLogger("taco.worker")

_RECIPE_MODULES = {
    "AfmoeForCausalLM": "afmoe",
    "ApertusForCausalLM": "apertus",
    "AquilaForCausalLM": "llama",
    "AquilaModel": "llama",
    "ArceeForCausalLM": "arcee",
    "AyaVisionForConditionalGeneration": "text_part",
    "BaiChuanForCausalLM": "baichuan",
    "BaichuanForCausalLM": "baichuan",
    "BailingMoeForCausalLM": "bailing_moe",
    "BailingMoeV2ForCausalLM": "bailing_moe_v2",
    "BambaForCausalLM": "bamba",
    "BioGptForCausalLM": "biogpt",
    "BloomForCausalLM": "bloom",
    "ChatGLMForConditionalGeneration": "chatglm",
    "ChatGLMModel": "chatglm",
    "CodeGenForCausalLM": "codegen",
    "Cohere2ForCausalLM": "cohere2",
    "CohereForCausalLM": "cohere",
    "CwmForCausalLM": "cwm",
    "DbrxForCausalLM": "dbrx",
    "DeciLMForCausalLM": "decilm",
    "DeepseekForCausalLM": "deepseek_moe",
    "DeepseekV2ForCausalLM": "deepseek",
    "DeepseekV3ForCausalLM": "deepseek",
    "Dots1ForCausalLM": "dots1",
    "Ernie4_5_ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5_moe",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Exaone4ForCausalLM": "exaone4",
    "ExaoneForCausalLM": "exaone",
    "FalconForCausalLM": "falcon",
    "FalconH1ForCausalLM": "falcon_h1",
    "FlexOlmoForCausalLM": "flex_olmo",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "GemmaForCausalLM": "gemma",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite",
    "Glm4vForConditionalGeneration": "glm4v",
    "Glm4vMoeForConditionalGeneration": "glm4v_moe",
    "GlmForCausalLM": "glm",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTJForCausalLM": "gptj",
    "GPTNeoForCausalLM": "gpt_neo",
    "GPTNeoXForCausalLM": "gpt_neox",
    "GptOssForCausalLM": "gpt_oss",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granite_moe",
    "GraniteMoeHybridForCausalLM": "granite_moe_hybrid",
    "GraniteMoeSharedForCausalLM": "granite_moe",
    "HeliumForCausalLM": "helium",
    "HunYuanDenseV1ForCausalLM": "hunyuan",
    "HunYuanMoEV1ForCausalLM": "hunyuan_moe",
    "Idefics3ForConditionalGeneration": "text_part",
    "InternLM2ForCausalLM": "internlm2",
    "InternLMForCausalLM": "internlm",
    "InternVLChatModel": "text_part",
    "InternVLForConditionalGeneration": "text_part",
    "Jais2ForCausalLM": "jais2",
    "JAISLMHeadModel": "jais",
    "KimiLinearForCausalLM": "kimi_linear",
    "KimiVLForConditionalGeneration": "text_part",
    "Lfm2ForCausalLM": "lfm2",
    "Lfm2MoeForCausalLM": "lfm2_moe",
    "Lfm2VlForConditionalGeneration": "text_part",
    "LlamaForCausalLM": "llama",
    "LlavaForConditionalGeneration": "text_part",
    "LlavaNextForConditionalGeneration": "text_part",
    "MiMoV2FlashForCausalLM": "mimo_v2_flash",
    "MiniCPM3ForCausalLM": "minicpm3",
    "MiniCPMForCausalLM": "minicpm",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "Ministral3ForCausalLM": "ministral3",
    "Mistral3ForConditionalGeneration": "ministral3",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "MllamaForConditionalGeneration": "mllama",
    "MptForCausalLM": "mpt",
    "MPTForCausalLM": "mpt",
    "NanoChatForCausalLM": "nanochat",
    "NemotronForCausalLM": "nemotron",
    "NemotronHForCausalLM": "nemotron_h",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OlmoeForCausalLM": "olmoe",
    "OlmoForCausalLM": "olmo",
    "OlmoHybridForCausalLM": "olmo_hybrid",
    "OPTForCausalLM": "opt",
    "OrionForCausalLM": "orion",
    "PersimmonForCausalLM": "persimmon",
    "Phi3ForCausalLM": "phi3",
    "Phi3SmallForCausalLM": "phi3_small",
    "Phi4MMForCausalLM": "phi4mm",
    "Phi4MultimodalForCausalLM": "phi4mm",
    "PhiForCausalLM": "phi",
    "PhiMoEForCausalLM": "phimoe",
    "PhimoeForCausalLM": "phimoe",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_vl",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
    "QWenLMHeadModel": "qwen",
    "RWForCausalLM": "falcon",
    "SeedOssForCausalLM": "seed_oss",
    "SmolLM3ForCausalLM": "smollm3",
    "SmolVLMForConditionalGeneration": "text_part",
    "StableLMEpochForCausalLM": "stablelm",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "TeleChat2ForCausalLM": "telechat2",
    "VaultGemmaForCausalLM": "vaultgemma",
    "XverseForCausalLM": "xverse",
}


# By class name: the module in `recipes`.
BUILT_IN: Mapping[str, str] = MappingProxyType(_RECIPE_MODULES)


class _ModelRegistry:
    """The recipes by architecture. Registered ones come first, then TACO's, then packages'."""

    def __init__(self) -> None:
        self._registered: dict[str, ExternalRecipe] = {}
        self._warned_of: set[ExternalRecipe] = set()

    def register_model(self, architecture: str, recipe: Recipe | str) -> None:
        """Add a recipe in this process, or replace one with a warning.

        Processes of `taco_llm serve` do not see it: declare an entry point for them.

        Args:
            architecture: class name, as in `architectures` of config.json.
            recipe: the function, or "module:function", which is imported on first use.

        Raises:
            TypeError: `architecture` is not a string, or `recipe` is a class or not callable.
            ValueError: `recipe` is a string of another form.
        """
        if not isinstance(architecture, str):
            raise TypeError(f"the architecture must be a string, not {architecture!r}")
        if isinstance(recipe, str):
            check_target(recipe)
        elif isinstance(recipe, type) or not callable(recipe):
            raise TypeError(
                f"a recipe must be a function that returns a ModelPlan, or its name as "
                f"module:function, not {recipe!r}"
            )
        added = ExternalRecipe(recipe)
        if architecture in self._registered or architecture in BUILT_IN:
            logger.warning("%s replaces the recipe of %s", added, architecture)
        self._registered[architecture] = added

    def get_supported_archs(self) -> AbstractSet[str]:
        """The architectures that have a recipe; packages are not imported."""
        return BUILT_IN.keys() | self._registered.keys() | self.recipes_of_packages().keys()

    def recipes_of_packages(self) -> Mapping[str, Sequence[ExternalRecipe]]:
        """The recipes of installed packages; warns once of those for TACO's own."""
        found = installed_recipes()
        for architecture in sorted(BUILT_IN.keys() & found.keys()):
            for recipe in {*found.pop(architecture)} - self._warned_of:
                self._warned_of.add(recipe)
                logger.warning(
                    "%s is ignored: %s has a recipe of TACO; give it another name and set "
                    "--hf-overrides '{\"architectures\": [NAME]}'",
                    recipe,
                    architecture,
                )
        return found

    def find(self, architectures: Sequence[str]) -> tuple[str, Recipe]:
        """See `find_recipe`."""
        installed: Mapping[str, Sequence[ExternalRecipe]] | None = None
        for architecture in architectures:
            if registered := self._registered.get(architecture):
                return architecture, registered
            if module_name := BUILT_IN.get(architecture):
                module = import_module(f"taco_worker.models.recipes.{module_name}")
                recipe: Recipe = module.plan
                return architecture, recipe
            # Not for architectures of TACO: it takes longer than all else here.
            installed = self.recipes_of_packages() if installed is None else installed
            if recipes := installed.get(architecture):
                if len(recipes) > 1:
                    named = " and ".join(map(str, recipes))
                    raise ValueError(f"{architecture} has two recipes: {named}; uninstall one")
                return architecture, recipes[0]
        raise ValueError(
            _unsupported(architectures, {**BUILT_IN, **self._registered, **(installed or {})})
        )


ModelRegistry = _ModelRegistry()


def supported_architectures() -> list[str]:
    return sorted(ModelRegistry.get_supported_archs())


def find_recipe(architectures: Sequence[str]) -> tuple[str, Recipe]:
    """Find the first of `architectures` that has a recipe.

    Raises:
        ValueError: none has one; the message names similar architectures. Or two packages declare
            a recipe of the same architecture.
    """
    return ModelRegistry.find(architectures)


def _unsupported(architectures: Sequence[str], supported: Iterable[str]) -> str:
    names = [name[:_LONGEST_NAME] for name in architectures]
    start = f"architecture {', '.join(names) or '(config.json names none)'} is not supported"
    supported = sorted(supported)
    if mistyped := _close_names(names, supported, str.lower, _MISTYPED):
        return f"{start}; did you mean {', '.join(mistyped)}?"
    similar = _close_names(names, supported, _model_name, _SIMILAR)
    nearest = f"similar names: {', '.join(similar)}; " if similar else ""
    return f"{start}; {nearest}docs/models.md lists all {len(supported)} that are"


def _close_names(
    names: Sequence[str], supported: Sequence[str], key: Callable[[str], str], cutoff: float
) -> list[str]:
    """The names among `supported` whose keys are like those of `names`, best first."""
    by_key = {key(name): name for name in reversed(supported)}
    found = [
        by_key[one] for name in names for one in get_close_matches(key(name), by_key, cutoff=cutoff)
    ]
    return list(dict.fromkeys(found))


def _model_name(architecture: str) -> str:
    """Without the end that many names have, such as ForCausalLM."""
    return _ENDS.sub("", architecture.lower())
