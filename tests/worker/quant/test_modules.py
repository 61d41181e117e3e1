"""The settings of a module, by names that plans and files write in several ways."""

from __future__ import annotations

import pytest

from taco_worker.quant.modules import ByModule

MODULE = "model.layers.0.self_attn.q_proj"
TEXT = "layers.0.self_attn.q_proj"
VISION = "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    "prefix",
    ["", "model.", "language_model.", "language_model.model.", "model.language_model."],
)
@pytest.mark.parametrize("vision_first", [False, True])
def test_a_layer_for_images_does_not_hide_one_for_text(prefix: str, vision_first: bool) -> None:
    names = [VISION, prefix + TEXT] if vision_first else [prefix + TEXT, VISION]
    settings = ByModule({name: name for name in names})
    assert settings.get(MODULE) == prefix + TEXT
    assert settings.get(VISION) == VISION


def test_other_modules_have_none() -> None:
    settings = ByModule({VISION: 1, "model.layers.1.mlp.up_proj": 2})
    assert settings.get(MODULE) is None
    assert settings.get("model.layers.0.mlp.up_proj") is None
    assert settings.get("transformer.model.layers.1.mlp.up_proj") == 2
