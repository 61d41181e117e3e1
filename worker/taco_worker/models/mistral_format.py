"""Mistral's own format: params.json, and consolidated*.safetensors with other names of tensors.

Mistral rotates neighbouring channels of a head (0 and 1, 2 and 3), Hugging Face's layout the
channels i and i + head_dim / 2. So the rows of each head of `wq` and `wk` are put in another order
(`convert_mistral_weights_to_hf.py` of transformers).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taco_common.json_file import read_json_object

if TYPE_CHECKING:
    from torch import Tensor

PARAMS_FILE = "params.json"
WEIGHTS_PREFIX = "consolidated"

_DEFAULT_LENGTH = 128_000  # of params.json without a length, as in vLLM
_END_ID = 2  # of </s>, in all published tokenizers of Mistral
_FIELDS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "activation": "hidden_act",
    "tied_embeddings": "tie_word_embeddings",
}
_YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}
_OTHER_PARTS = ("vision_encoder", "vision_language_adapter", "patch_merger", "pre_mm_projector")
_NAMES = (
    (re.compile(r"tok_embeddings\."), "model.embed_tokens."),
    (re.compile(r"norm\."), "model.norm."),
    (re.compile(r"output\."), "lm_head."),
    (re.compile(r"layers\.(\d+)\.attention\.w([qkvo])\."), r"model.layers.\1.self_attn.\2_proj."),
    (re.compile(r"layers\.(\d+)\.attention_norm\."), r"model.layers.\1.input_layernorm."),
    (re.compile(r"layers\.(\d+)\.ffn_norm\."), r"model.layers.\1.post_attention_layernorm."),
    (re.compile(r"layers\.(\d+)\.feed_forward\.w1\."), r"model.layers.\1.mlp.gate_proj."),
    (re.compile(r"layers\.(\d+)\.feed_forward\.w2\."), r"model.layers.\1.mlp.down_proj."),
    (re.compile(r"layers\.(\d+)\.feed_forward\.w3\."), r"model.layers.\1.mlp.up_proj."),
    (
        re.compile(r"layers\.(\d+)\.feed_forward\.(gate\.|experts\.\d+\.w[123]\.)"),
        r"model.layers.\1.block_sparse_moe.\2",
    ),
)
_ROTATED = re.compile(r"layers\.\d+\.attention\.w[qk]\.(\w+)")
# Scales of FP8 checkpoints, by the end of their names.
_SCALES = {"qscale_weight": "weight_scale", "qscale_act": "input_scale"}
_KV_SCALES = re.compile(r"layers\.(\d+)\.attention\.(q|k|v|kv)_fake_quantizer\.qscale_act")


def hf_config_of(params: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The fields of a params.json under Hugging Face's names.

    Args:
        file: the params.json, for errors.

    Raises:
        ValueError: the model needs something that is not supported.
    """
    fields = {_FIELDS.get(name, name): value for name, value in params.items()}
    moe, yarn = fields.pop("moe", None), fields.pop("yarn", None)
    growth, windows = fields.pop("llama_4_scaling", None), fields.get("sliding_window")
    fields.setdefault("hidden_act", "silu")
    fields.setdefault("tie_word_embeddings", False)
    length = fields.pop("max_seq_len", None) or _DEFAULT_LENGTH
    fields.setdefault("max_position_embeddings", length)
    fields.setdefault("sliding_window", None)  # config.json without it means another window
    fields.setdefault("eos_token_id", _END_ID)
    if fields.get("rope_theta") is None:
        fields["rope_theta"] = 10_000.0 if windows else 1_000_000.0  # as in mistral-inference
    fields["model_type"], fields["architectures"] = "mistral", ["MistralForCausalLM"]
    if moe:
        _add_experts(fields, moe, file)
    if yarn:
        _add_yarn(fields, yarn, file)
    if growth:
        _add_growth(fields, growth, file)
    if quantization := fields.get("quantization"):
        fields["quantization_config"] = _quantization_config(quantization, file)
    if isinstance(windows, list):
        _add_layer_types(fields, windows, file)
    return fields


def is_mistral_file(path: Path) -> bool:
    """Whether the tensors of a weight file have Mistral's names."""
    return path.name.startswith(WEIGHTS_PREFIX) and path.suffix == ".safetensors"


def hf_name(name: str) -> str | None:
    """Hugging Face's name of a tensor; None: it belongs to images, not to the text model."""
    if match := _KV_SCALES.fullmatch(name):
        return match.expand(r"model.layers.\1.self_attn.\2_scale")
    for pattern, replacement in _NAMES:
        if match := pattern.match(name):
            module, dot, end = (match.expand(replacement) + name[match.end() :]).rpartition(".")
            return module + dot + _SCALES.get(end, end)
    return None if name.startswith(_OTHER_PARTS) else name


def head_dim_of(directory: Path) -> int:
    """The number of channels of an attention head, from the params.json beside the weights.

    Raises:
        ValueError: there is no params.json, or it has no such number.
    """
    file = directory / PARAMS_FILE
    try:
        params = read_json_object(file)
        head_dim = params.get("head_dim") or params["dim"] // params["n_heads"]
    except FileNotFoundError:
        raise ValueError(f"the consolidated weights need {file}, which is missing") from None
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{file} does not say the size of a head: {error!r}") from None
    if not isinstance(head_dim, int) or head_dim <= 0 or head_dim % 2:
        raise ValueError(f"{file}: the size of a head is {head_dim}, not an even number")
    return head_dim


def hf_rows(name: str, tensor: Tensor, head_dim: int) -> Tensor:
    """The tensor with rows [heads * head_dim] in Hugging Face's order.

    Args:
        name: Mistral's name.

    Raises:
        ValueError: it is a part of a matrix whose rows are packed, or a scale for each row.
    """
    match = _ROTATED.fullmatch(name)
    if match is None:
        return tensor
    if match[1] != "weight":
        if tensor.numel() > 1:
            raise ValueError(
                f"{name} cannot be put in another order of rows: use the weights in Hugging Face's "
                "format"
            )
        return tensor
    if tensor.ndim != 2 or tensor.shape[0] % head_dim:
        return tensor
    pairs = tensor.view(-1, head_dim // 2, 2, tensor.shape[1])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _add_experts(fields: dict[str, Any], moe: Any, file: Path) -> None:
    if not isinstance(moe, dict) or moe.get("num_shared_experts"):
        raise ValueError(f"{file}: experts of this kind are not supported in Mistral's format")
    fields["model_type"], fields["architectures"] = "mixtral", ["MixtralForCausalLM"]
    fields["num_local_experts"] = moe.get("num_experts")
    fields["num_experts_per_tok"] = moe.get("num_experts_per_tok")


def _add_yarn(fields: dict[str, Any], yarn: Any, file: Path) -> None:
    if not isinstance(yarn, dict):
        raise ValueError(f"{file}: yarn is not an object")
    scaling = {new: yarn[old] for old, new in _YARN.items() if old in yarn}
    # Mistral scales cosines and sines only if apply_scale says so.
    if not yarn.get("apply_scale", True):
        scaling["attention_factor"] = 1.0
    fields["rope_scaling"] = {"rope_type": "yarn", **scaling}


def _add_growth(fields: dict[str, Any], growth: Any, file: Path) -> None:
    """Queries that grow with the position, as in Ministral 3."""
    length = "original_max_position_embeddings"
    if not isinstance(growth, dict) or not {"beta", length} <= growth.keys():
        raise ValueError(f"{file}: llama_4_scaling needs beta and {length}, not {growth!r:.100}")
    scaling = fields.get("rope_scaling") or {"rope_type": "default"}
    if fields["model_type"] != "mistral" or scaling.get(length, growth[length]) != growth[length]:
        raise ValueError(
            f"{file}: llama_4_scaling is not supported with experts or another {length} of yarn"
        )
    fields["model_type"], fields["architectures"] = "ministral3", ["Ministral3ForCausalLM"]
    given = {"llama_4_scaling_beta": growth["beta"], length: growth[length]}
    fields["rope_scaling"] = {**scaling, **given}


def _quantization_config(quantization: Any, file: Path) -> dict[str, Any]:
    """Hugging Face's settings for those of params.json, which names FP8 in its own way."""
    if isinstance(quantization, dict) and "quant_method" in quantization:
        return quantization
    if not isinstance(quantization, dict) or quantization.get("qformat_weight") != "fp8_e4m3":
        raise ValueError(f"{file}: quantization {quantization!r:.100} is not supported")
    return {"quant_method": "fp8"}


def _add_layer_types(fields: dict[str, Any], windows: list[Any], file: Path) -> None:
    """A window for each of some layers, which repeat."""
    num_layers = fields.get("num_hidden_layers")
    used = {window for window in windows if window is not None}
    is_mistral = fields["model_type"] == "mistral"
    if not is_mistral or not isinstance(num_layers, int) or not windows or len(used) > 1:
        raise ValueError(f"{file}: sliding_window {windows} is not supported")
    kinds = ["full_attention" if one is None else "sliding_attention" for one in windows]
    fields["layer_types"] = [kinds[layer % len(kinds)] for layer in range(num_layers)]
    fields["sliding_window"] = used.pop() if used else None
