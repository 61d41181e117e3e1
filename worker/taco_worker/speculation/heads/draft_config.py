"""The options of an EAGLE head's layer, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taco_proto.errors import ConfigurationError
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import Heads
from taco_worker.models.recipes.llama import read_heads
from taco_worker.models.rope import RotaryConfig
from taco_worker.models.rope_parsing import parse_rotary


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Options of a layer as Llama's, in which the versions of EAGLE agree."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: Heads
    rotary: RotaryConfig
    norm_eps: float


def read_draft_config(hf_config: Mapping[str, Any]) -> DraftConfig:
    """Raises ConfigurationError if a field is missing or invalid."""
    fields = ConfigFields(hf_config)
    try:
        activation = fields.activation("hidden_act", default="silu")
        if activation != "silu":
            raise ValueError(f"heads with {activation!r} are not supported, only silu")
        return DraftConfig(
            vocab_size=fields.size("vocab_size"),
            hidden_size=fields.size("hidden_size"),
            intermediate_size=fields.size("intermediate_size"),
            heads=read_heads(fields),
            rotary=parse_rotary(hf_config),
            norm_eps=fields.epsilon("rms_norm_eps", default=1e-6),
        )
    except KeyError as error:
        raise ConfigurationError(f"the heads' config.json has no {error}") from None
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ConfigurationError(f"the heads' config.json is invalid: {error}") from None
