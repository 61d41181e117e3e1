"""The rotary reference against transformers' models and its own definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2VLConfig
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as glm_rotary
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as neox_rotary
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotary
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding

from taco_kernels.reference.rotary import RotaryStyle, apply_rotary, gather_angles


def angles(num_tokens: int, half: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randn(num_tokens, half)
    return drawn.cos(), drawn.sin()


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_it_is_a_complex_rotation_of_a_part_of_the_head(style: RotaryStyle) -> None:
    x, drawn = torch.randn(5, 3, 24), torch.randn(5, 8)
    rotated = apply_rotary(x, drawn.cos(), drawn.sin(), offset=6, style=style)
    part = x[..., 6:22]
    pairs = (part[..., :8], part[..., 8:]) if style == "half" else (part[..., ::2], part[..., 1::2])
    turned = torch.complex(*pairs) * torch.polar(torch.ones(5, 1, 8), drawn.unsqueeze(1))
    if style == "half":
        expected = torch.cat((turned.real, turned.imag), dim=-1)
    else:
        expected = torch.view_as_real(turned).flatten(-2)
    torch.testing.assert_close(rotated[..., 6:22], expected)
    assert torch.equal(rotated[..., :6], x[..., :6])
    assert torch.equal(rotated[..., 22:], x[..., 22:])


def test_it_leaves_products_to_distances() -> None:
    """A query-key product depends on the distance between the two tokens."""
    query, key = torch.randn(1, 1, 16), torch.randn(1, 1, 16)
    frequencies = torch.rand(1, 8)

    def product(query_position: int, key_position: int) -> Tensor:
        turned = [
            apply_rotary(x, (frequencies * position).cos(), (frequencies * position).sin())
            for x, position in ((query, query_position), (key, key_position))
        ]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(product(9, 4), product(25, 20), atol=1e-4, rtol=1e-4)


def test_styles_and_parts_are_those_of_transformers() -> None:
    x = torch.randn(4, 3, 20)
    cos, sin = angles(4, 6)
    doubled = torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None]
    heads_first = x.transpose(0, 1)[None]
    neox, _ = neox_rotary(heads_first, heads_first, *doubled)
    glm, _ = glm_rotary(heads_first, heads_first, *doubled)
    gptj = gptj_rotary(x[None, ..., :12], sin[None], cos[None])[0]
    torch.testing.assert_close(apply_rotary(x, cos, sin), neox[0].transpose(0, 1))
    interleaved = apply_rotary(x, cos, sin, style="interleaved")
    torch.testing.assert_close(interleaved, glm[0].transpose(0, 1))
    torch.testing.assert_close(interleaved[..., :12], gptj)


def test_sections_take_the_angles_of_their_axis_as_in_qwen2_vl() -> None:
    sections = [2, 3, 3]
    parameters = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": sections}
    config: Any = Qwen2VLConfig(
        text_config={
            "max_position_embeddings": 50,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "rope_parameters": parameters,
        }
    ).get_text_config()
    positions = torch.randint(0, 50, (3, 7))
    cos, sin = Qwen2VLRotaryEmbedding(config)(torch.ones(1), positions.unsqueeze(1))
    frequencies = 10_000.0 ** -(torch.arange(8) / 8)
    table = torch.outer(torch.arange(50).float(), frequencies)
    cos_sin = torch.cat((table.cos(), table.sin()), dim=1)
    gathered = gather_angles(cos_sin, positions, sections)
    torch.testing.assert_close(gathered[0], cos[0, :, :8])
    torch.testing.assert_close(gathered[1], sin[0, :, :8])
    plain = gather_angles(cos_sin, positions[0])
    torch.testing.assert_close(plain[0], table.cos()[positions[0]])
