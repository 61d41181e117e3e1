"""Which modules of a GPTQ checkpoint are quantized, and with which settings."""

from __future__ import annotations

from dataclasses import dataclass

from taco_worker.quant.expressions import Expression, check_expressions, expression
from taco_worker.quant.integers.settings import Settings

_LANGUAGE_HEADS = ("lm_head", "embed_out", "output_layer")


def is_language_head(module: str) -> bool:
    return module.rpartition(".")[2] in _LANGUAGE_HEADS


def names_part(name: str, module: str) -> bool:
    """Whether `name` is one or several whole parts of a module's name: "mlp.gate", not "mlp.ga"."""
    return f".{name}." in f".{module}."


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a `quantization_config` of AutoGPTQ or GPTQModel.

    Attributes:
        settings: of modules that no rule names.
        dynamic: GPTQModel's rules, in their order: what the name of a module must begin with, and
            its settings; None: these modules are not quantized. The first that fits decides.
        only: parts of the names of quantized modules; empty: all modules.
        has_language_head: the language model head is quantized.
    """

    settings: Settings
    dynamic: tuple[tuple[Expression, Settings | None], ...]
    only: tuple[str, ...]
    has_language_head: bool

    @classmethod
    def read(cls, settings: Settings) -> Rules:
        """Raises ValueError if a rule is not a regular expression, or has the wrong type."""
        parts = settings.parts("dynamic")
        texts = {key: key.removeprefix("-:").removeprefix("+:") for key in parts}
        check_expressions(texts.values(), f"{settings.name}.dynamic")
        dynamic = [
            (expression(texts[key]), None if key.startswith("-:") else own.over(settings))
            for key, own in parts.items()
        ]
        only = settings.names("modules_in_block_to_quantize")
        return cls(settings, tuple(dynamic), only, settings.flag("lm_head", default=False))

    def all_settings(self) -> list[Settings]:
        """The settings of the modules that no rule names, and of those that one does."""
        own = [settings for _, settings in self.dynamic if settings is not None]
        return [self.settings, *own]

    def settings_of(self, module: str) -> Settings | None:
        """The settings of a module; None: it is not quantized."""
        if is_language_head(module):
            if not self.has_language_head:
                return None
        elif self.only and not any(names_part(part, module) for part in self.only):
            return None
        for pattern, settings in self.dynamic:
            if pattern.match(module):
                return settings
        return self.settings
