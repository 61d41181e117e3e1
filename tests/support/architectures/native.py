"""Architectures that transformers has: its class makes the weights and computes the logits."""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from support.architectures.variant import Oracle, Tensors

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def _unchanged(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(config)


def _none(config: Mapping[str, Any]) -> Tensors:
    return {}


@dataclass(frozen=True)
class Native:
    """Checkpoints of a class of transformers.

    Attributes:
        model: the class's name.
        to_native: published config fields -> fields that the config class knows.
        missing_prefix: what the published files leave out in front of each tensor's name.
        ignored: config -> tensors that published files hold beside the weights, such as masks.
        attention: transformers' implementation.
        as_saved_by_transformers: config.json and tensors in the form that transformers 5 gives
            them (`rope_parameters`, experts stacked in 3-D tensors), not as first published.
    """

    oracle: ClassVar[str] = "transformers"
    model: str
    to_native: Callable[[Mapping[str, Any]], dict[str, Any]] = _unchanged
    missing_prefix: str = ""
    ignored: Callable[[Mapping[str, Any]], Tensors] = _none
    as_saved_by_transformers: bool = False
    attention: str = "eager"

    def random_checkpoint(
        self, config: Mapping[str, Any], seed: int
    ) -> tuple[dict[str, Any], Tensors]:
        model = random_model(self.model, self.to_native(config), seed)
        with tempfile.TemporaryDirectory() as folder:
            original_names = not self.as_saved_by_transformers
            model.save_pretrained(folder, save_original_format=original_names)
            tensors = load_file(Path(folder, "model.safetensors"))
            saved_config = json.loads(Path(folder, "config.json").read_text())
        renamed = {name.removeprefix(self.missing_prefix): value for name, value in tensors.items()}
        written = saved_config if self.as_saved_by_transformers else dict(config)
        return written, renamed | self.ignored(config)

    def load(
        self, config: Mapping[str, Any], tensors: Tensors, max_model_len: int | None
    ) -> Oracle:
        ignored = self.ignored(config)
        weights = {
            name if name.startswith(self.missing_prefix) else self.missing_prefix + name: value
            for name, value in tensors.items()
            if name not in ignored
        }
        model = load_model(self.model, self.to_native(config), weights, attention=self.attention)
        fix_long_rope(model, max_model_len)
        return Oracle(lambda ids: model(ids[None], use_cache=False).logits[0])


def config_of(model: str, fields: Mapping[str, Any]) -> Any:
    """The config object of the class `model` with the fields of a config.json."""
    # transformers changes the dictionaries that it is given.
    given = copy.deepcopy({name: value for name, value in fields.items() if name != "torch_dtype"})
    return getattr(transformers, model).config_class(**given)


def random_model(model: str, fields: Mapping[str, Any], seed: int) -> Any:
    """A model of the class `model` in fp32, every parameter and stored buffer random.

    Norm weights, biases and sinks start as constants and matrices so small that logits are nearly
    flat: either would hide a tensor that is forgotten or misplaced.
    """
    config = config_of(model, fields)
    built = getattr(transformers, model)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    stored = built.state_dict()
    with torch.no_grad():
        for name, tensor in [*built.named_parameters(), *built.named_buffers()]:
            if name in stored:
                tensor.copy_(random_values(tensor, generator))
    return built


def random_values(like: Tensor, generator: torch.Generator) -> Tensor:
    """Random values for a parameter that holds its initial values."""
    if like.ndim > 1:
        spread = 1.5 * like.shape[-1] ** -0.5
        return torch.randn(like.shape, generator=generator) * spread
    if like.ndim == 0:  # a constant, such as an epsilon, keeps its sign and size
        return like * (1 + 0.2 * torch.randn((), generator=generator).clamp(-1, 1))
    # An uninitialized vector, such as an attention sink, may hold anything.
    start = torch.ones_like(like) if bool((like == 1).all()) else torch.zeros_like(like)
    return start + torch.randn(like.shape, generator=generator) * 0.2


def load_model(
    model: str, fields: Mapping[str, Any], weights: Tensors, *, attention: str = "eager"
) -> Any:
    """A model in fp32, its weights those of a checkpoint.

    Raises:
        ValueError: a weight of the model is not in the checkpoint, or the reverse.
    """
    built, report = getattr(transformers, model).from_pretrained(
        None,
        config=config_of(model, fields),
        state_dict={name: value.float() for name, value in weights.items()},
        attn_implementation=attention,
        dtype=torch.float32,
        output_loading_info=True,
    )
    problems = {name: found for name, found in report.items() if found}
    if problems:
        raise ValueError(f"{model} does not fit its checkpoint: {problems}")
    return built.eval()


def fix_long_rope(model: Any, max_model_len: int | None) -> None:
    """Let a model with long rope use one table for all lengths, as `max_model_len` tokens need.

    transformers takes the long table once a sequence exceeds the original length, and so changes
    keys that it has cached. An engine fixes the table instead.
    """
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is None or rotary.rope_type != "longrope":
        return
    parameters = rotary.config.rope_parameters
    original_length = parameters["original_max_position_embeddings"]
    if (max_model_len or rotary.config.max_position_embeddings) <= original_length:
        return
    init = functools.partial(
        transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["longrope"],
        seq_len=original_length + 1,
    )
    rotary.original_inv_freq.copy_(init(rotary.config)[0])
    if hasattr(rotary, "rope_init_fn"):
        # Phi-3.5-MoE computes its table in every pass, always the short one in transformers 5.23;
        # only the factors on cos and sin follow the length.
        rotary.rope_init_fn = init
        parameters["short_mscale"] = parameters["long_mscale"]
