"""Writes the checkpoint of a variant as GGUF, with the steps of llama.cpp's `conversion/`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from safetensors.numpy import load_file, save_file

from support.gguf_files.blocks import quantized
from support.gguf_files.other_tensors import OTHER_TENSORS, rows_form
from support.gguf_files.parameters import add_parameters, num_blocks, rope_factors
from support.gguf_files.recurrent import RECURRENT_ARCHITECTURES, tiled_columns
from support.gguf_files.tokenizer import add_tokenizer

ARCHITECTURES = {
    "AfmoeForCausalLM": MODEL_ARCH.AFMOE,
    "ArceeForCausalLM": MODEL_ARCH.ARCEE,
    "BailingMoeForCausalLM": MODEL_ARCH.BAILINGMOE,
    "BailingMoeV2ForCausalLM": MODEL_ARCH.BAILINGMOE2,
    "DbrxForCausalLM": MODEL_ARCH.DBRX,
    "DeciLMForCausalLM": MODEL_ARCH.DECI,
    "DeepseekForCausalLM": MODEL_ARCH.DEEPSEEK,
    "Dots1ForCausalLM": MODEL_ARCH.DOTS1,
    "Ernie4_5ForCausalLM": MODEL_ARCH.ERNIE4_5,
    "Ernie4_5_ForCausalLM": MODEL_ARCH.ERNIE4_5,
    "Ernie4_5_MoeForCausalLM": MODEL_ARCH.ERNIE4_5_MOE,
    "Exaone4ForCausalLM": MODEL_ARCH.EXAONE4,
    "ExaoneForCausalLM": MODEL_ARCH.EXAONE,
    "Glm4MoeLiteForCausalLM": MODEL_ARCH.DEEPSEEK2,
    "GraniteMoeSharedForCausalLM": MODEL_ARCH.GRANITE_MOE,
    "HunYuanDenseV1ForCausalLM": MODEL_ARCH.HUNYUAN_DENSE,
    "HunYuanMoEV1ForCausalLM": MODEL_ARCH.HUNYUAN_MOE,
    "JAISLMHeadModel": MODEL_ARCH.JAIS,
    "Jais2ForCausalLM": MODEL_ARCH.JAIS2,
    "MPTForCausalLM": MODEL_ARCH.MPT,
    "MiMoV2FlashForCausalLM": MODEL_ARCH.MIMO2,
    "MiniCPM3ForCausalLM": MODEL_ARCH.MINICPM3,
    "MiniCPMForCausalLM": MODEL_ARCH.MINICPM,
    "MiniMaxM2ForCausalLM": MODEL_ARCH.MINIMAXM2,
    "OlmoForCausalLM": MODEL_ARCH.OLMO,
    "OrionForCausalLM": MODEL_ARCH.ORION,
    "Qwen3VLForConditionalGeneration": MODEL_ARCH.QWEN3VL,
    "Qwen3VLMoeForConditionalGeneration": MODEL_ARCH.QWEN3VLMOE,
    "SeedOssForCausalLM": MODEL_ARCH.SEED_OSS,
    "BaiChuanForCausalLM": MODEL_ARCH.BAICHUAN,
    "BaichuanForCausalLM": MODEL_ARCH.BAICHUAN,
    "ChatGLMForConditionalGeneration": MODEL_ARCH.CHATGLM,
    "ChatGLMModel": MODEL_ARCH.CHATGLM,
    "DeepseekV2ForCausalLM": MODEL_ARCH.DEEPSEEK2,
    "DeepseekV3ForCausalLM": MODEL_ARCH.DEEPSEEK2,
    "GPTNeoXForCausalLM": MODEL_ARCH.GPTNEOX,
    "Glm4MoeForCausalLM": MODEL_ARCH.GLM4_MOE,
    "GlmForCausalLM": MODEL_ARCH.CHATGLM,
    "InternLM2ForCausalLM": MODEL_ARCH.INTERNLM2,
    "Olmo3ForCausalLM": MODEL_ARCH.OLMO2,
    "PhiMoEForCausalLM": MODEL_ARCH.PHIMOE,
    "PhimoeForCausalLM": MODEL_ARCH.PHIMOE,
    "QWenLMHeadModel": MODEL_ARCH.QWEN,
    "BloomForCausalLM": MODEL_ARCH.BLOOM,
    "Cohere2ForCausalLM": MODEL_ARCH.COHERE2,
    "CohereForCausalLM": MODEL_ARCH.COMMAND_R,
    "FalconForCausalLM": MODEL_ARCH.FALCON,
    "GPT2LMHeadModel": MODEL_ARCH.GPT2,
    "GPTBigCodeForCausalLM": MODEL_ARCH.STARCODER,
    "Gemma2ForCausalLM": MODEL_ARCH.GEMMA2,
    "Gemma3ForCausalLM": MODEL_ARCH.GEMMA3,
    "GemmaForCausalLM": MODEL_ARCH.GEMMA,
    "Glm4ForCausalLM": MODEL_ARCH.GLM4,
    "GptOssForCausalLM": MODEL_ARCH.GPT_OSS,
    "GraniteForCausalLM": MODEL_ARCH.GRANITE,
    "GraniteMoeForCausalLM": MODEL_ARCH.GRANITE_MOE,
    "LlamaForCausalLM": MODEL_ARCH.LLAMA,
    "Ministral3ForCausalLM": MODEL_ARCH.MISTRAL3,
    "MistralForCausalLM": MODEL_ARCH.LLAMA,
    "MixtralForCausalLM": MODEL_ARCH.LLAMA,
    "NemotronForCausalLM": MODEL_ARCH.NEMOTRON,
    "Olmo2ForCausalLM": MODEL_ARCH.OLMO2,
    "OlmoeForCausalLM": MODEL_ARCH.OLMOE,
    "Phi3ForCausalLM": MODEL_ARCH.PHI3,
    "PhiForCausalLM": MODEL_ARCH.PHI2,
    "Qwen2ForCausalLM": MODEL_ARCH.QWEN2,
    "Qwen2MoeForCausalLM": MODEL_ARCH.QWEN2MOE,
    "Qwen2VLForConditionalGeneration": MODEL_ARCH.QWEN2VL,
    "Qwen3ForCausalLM": MODEL_ARCH.QWEN3,
    "Qwen3MoeForCausalLM": MODEL_ARCH.QWEN3MOE,
    "SmolLM3ForCausalLM": MODEL_ARCH.SMOLLM3,
    "StableLmForCausalLM": MODEL_ARCH.STABLELM,
    "Starcoder2ForCausalLM": MODEL_ARCH.STARCODER2,
    "XverseForCausalLM": MODEL_ARCH.XVERSE,
    **RECURRENT_ARCHITECTURES,
}
_PERMUTED = (
    *(MODEL_ARCH.LLAMA, MODEL_ARCH.GRANITE, MODEL_ARCH.GRANITE_MOE),
    *(MODEL_ARCH.MISTRAL3, MODEL_ARCH.SMOLLM3, MODEL_ARCH.XVERSE),
    MODEL_ARCH.GRANITE_HYBRID,
    *(MODEL_ARCH.ARCEE, MODEL_ARCH.DEEPSEEK, MODEL_ARCH.MINICPM, MODEL_ARCH.OLMO),
)
_SHIFTED = (MODEL_ARCH.GEMMA, MODEL_ARCH.GEMMA2, MODEL_ARCH.GEMMA3, MODEL_ARCH.NEMOTRON)
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")
_HEAD = re.compile(r"(.*layernorm)\.norms\.(\d+)\.weight")
_NOT_QUANTIZED = re.compile(r"(norm|norms\.\d+|\.gate|wpe|shared_expert_gate)\.weight$")


@dataclass(frozen=True)
class _Stored:
    """Numbers, or the bytes of quantized rows."""

    data: np.ndarray
    kind: GGMLQuantizationType | None = None


def write_gguf(
    directory: Path,
    file: Path,
    kind: str = "F32",
    *,
    other_kinds: Mapping[str, str] = MappingProxyType({}),
    pre: str = "gpt-2",
    max_tensors: int = 0,
    old_latents: bool = False,
    old_experts: bool = False,
    small_first_shard: bool = False,
    extra: tuple[str, ...] = (),
) -> Path:
    """Write a checkpoint as GGUF, and return the first file.

    The checkpoint gets the numbers that the file has, so that its oracle is that of the file.

    Args:
        directory: of a checkpoint in Hugging Face's format with one weight file.
        kind: of all matrices whose columns are whole blocks; the others are float32.
        other_kinds: of matrices, by a part of their names in the checkpoint.
        pre: name of the pre-tokenizer.
        max_tensors: of a file; 0: one file has all tensors.
        old_latents: as files before 2025 have DeepSeek's attention: kv_b_proj in one tensor.
        old_experts: as the first files of Mixtral have experts: a tensor for each.
        small_first_shard: the first of several files has no tensors.
        extra: names of further tensors.
    """
    config = json.loads((directory / "config.json").read_text())
    config |= config.get("text_config", {})
    architecture = ARCHITECTURES[config["architectures"][0]]
    weights = directory / "model.safetensors"
    tensors = {name: tensor.astype(np.float32) for name, tensor in load_file(weights).items()}
    stored: dict[str, _Stored] = {}
    for name, numbers in tensors.items():
        is_split = architecture is MODEL_ARCH.DEEPSEEK2 and not old_latents
        if name.endswith("kv_b_proj.weight") and is_split:
            latents, tensors[name] = _latent_parts(config, name, numbers, kind)
            stored |= latents
            continue
        whole = np.atleast_1d(numbers)
        axes, shape = rows_form(config, architecture, name, whole.shape)
        ordered = np.ascontiguousarray(whole.reshape(shape).transpose(axes))
        has_heads = tiled_columns(config, architecture, name, whole.shape) is not None
        rows = ordered.reshape(whole.shape) if has_heads else ordered
        own_kind = next((one for part, one in other_kinds.items() if part in name), kind)
        stored[name], values = _stored(name, rows, own_kind)
        restored = values.reshape(ordered.shape).transpose(np.argsort(axes))
        tensors[name] = np.ascontiguousarray(restored).reshape(whole.shape)
    save_file(tensors, weights, {"format": "pt"})
    names = gguf.get_tensor_name_map(architecture, num_blocks(config))
    writer = GGUFWriter(
        file,
        gguf.MODEL_ARCH_NAMES[architecture],
        split_max_tensors=max_tensors,
        small_first_shard=small_first_shard,
    )
    add_parameters(writer, config, architecture, old_latents=old_latents)
    add_tokenizer(writer, directory, pre)
    for name, one in _converted(config, architecture, stored):
        if old_experts and (match := re.fullmatch(r"layers\.(\d+)\..*\.w([123])\.weight", name)):
            part = {"1": "gate", "2": "down", "3": "up"}[match[2]]
            for i, expert in enumerate(one.data):
                own = f"blk.{match[1]}.ffn_{part}.{i}.weight"
                writer.add_tensor(own, np.ascontiguousarray(expert), raw_dtype=one.kind)
            continue
        own_name = name if ".nextn." in name else None  # which gguf-py's table may lack
        new_name = own_name or names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new_name is not None, name
        writer.add_tensor(new_name, np.ascontiguousarray(one.data), raw_dtype=one.kind)
    for name, factors in rope_factors(config).items():
        writer.add_tensor(name, factors)
    for name in extra:
        writer.add_tensor(name, np.ones((4, 8), np.float32))
    writer.write_header_to_file(file)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(file.parent.glob(f"{file.stem}-00001-of-*.gguf"))
    return parts[0] if parts else file


def _stored(name: str, rows: np.ndarray, kind: str) -> tuple[_Stored, np.ndarray]:
    """What the file gets of a tensor, and its values."""
    if rows.ndim < 2 or kind == "F32" or _NOT_QUANTIZED.search(name):
        return _Stored(rows), rows
    if kind == "F16":
        return _Stored(rows.astype(np.float16)), rows.astype(np.float16).astype(np.float32)
    if rows.shape[-1] % GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]:
        return _Stored(rows), rows
    data, values = quantized(rows, kind)
    return _Stored(data, GGMLQuantizationType[kind]), values


def _latent_parts(
    config: dict[str, Any], name: str, numbers: np.ndarray, kind: str
) -> tuple[dict[str, _Stored], np.ndarray]:
    """`DeepseekV2Model.modify_tensors`: keys of heads, transposed, and values; and all values."""
    size = config["qk_nope_head_dim"]
    heads = numbers.reshape(config["num_attention_heads"], -1, numbers.shape[-1])
    parts, values = {}, []
    for part, rows in (("k_b", heads[:, :size].swapaxes(1, 2)), ("v_b", heads[:, size:])):
        own = name.replace("kv_b", part)
        parts[own], numbers_of_part = _stored(own, np.ascontiguousarray(rows), kind)
        values.append(numbers_of_part)
    joined = np.concatenate([values[0].swapaxes(1, 2), values[1]], axis=1)
    return parts, np.ascontiguousarray(joined.reshape(numbers.shape))


def _converted(
    config: dict[str, Any], architecture: MODEL_ARCH, tensors: dict[str, _Stored]
) -> Iterator[tuple[str, _Stored]]:
    """The tensors in the converter's form, some under other names."""
    heads = ("num_attention_heads", "n_head", "n_heads")
    num_heads = next(config[one] for one in heads if config.get(one))
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    groups: dict[str, dict[int, _Stored]] = {}
    for original, one in tensors.items():
        name, data = original.replace("language_model.", ""), one.data
        if re.search(
            r"(^|\.)visual\.|^relative_pe\.|^transformer\.relative_pe\.|rotary_(pos_)?emb|\.(attn|attention)\.(masked_)?bias$",
            name,
        ):
            continue
        if (match := re.match(r"model\.layers\.(\d+)\.", name)) and (
            int(match[1]) >= num_blocks(config)
        ):
            continue
        is_bailing = architecture is MODEL_ARCH.BAILINGMOE
        fused = "query_key_value" if is_bailing else "wqkv|W_pack"
        if match and re.search(rf"({fused})\.weight$", name):
            yield from _split_qkv(config, architecture, f"blk.{match[1]}.attn_", one)
            continue
        convert = OTHER_TENSORS.get(architecture)
        others = None if convert is None else convert(config, name, data)
        if others is not None:
            yield from ((other, _Stored(numbers, one.kind)) for other, numbers in others)
            continue
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        if architecture in _PERMUTED and re.search(r"[qk]_proj\.(weight|bias)$", name):
            data = _permuted(data, num_heads if ".q_proj." in name else num_kv_heads)
        if architecture in _SHIFTED and name.endswith("norm.weight"):
            data = data + 1
        whole = (MODEL_ARCH.BAILINGMOE2, MODEL_ARCH.CHATGLM)
        if "query_key_value" in name and architecture not in whole:
            data = _by_kind(data, num_heads, _falcon_kv_heads(config, num_heads))
        if architecture is MODEL_ARCH.GPT_OSS:
            yield from _gpt_oss(name, one)
            continue
        if name.endswith("block_sparse_moe.input_linear.weight"):
            half = data.shape[1] // 2
            base = name.replace("block_sparse_moe.input_linear", "mlp.experts.{}_proj")
            yield base.format("gate"), _Stored(data[:, :half], one.kind)
            yield base.format("up"), _Stored(data[:, half:], one.kind)
            continue
        if architecture in (MODEL_ARCH.BLOOM, MODEL_ARCH.CHATGLM):
            name = name.removeprefix("transformer.")
        if match := _EXPERT.fullmatch(name) or _HEAD.fullmatch(name):
            suffix = f".{match[3]}" if match.re is _EXPERT else ".weight"
            own = re.compile(r"model(.*)(?:block_sparse_moe|feed_forward)")
            merged = own.sub(r"\1feed_forward", match[1] + suffix)
            groups.setdefault(merged.removeprefix("."), {})[int(match[2])] = one
        else:
            yield name, _Stored(data, one.kind)
    for name, parts in groups.items():
        ordered = [parts[i] for i in range(len(parts))]
        yield name, _Stored(np.stack([part.data for part in ordered]), ordered[0].kind)


def _split_qkv(
    config: dict[str, Any], architecture: MODEL_ARCH, prefix: str, one: _Stored
) -> Iterator[tuple[str, _Stored]]:
    """`modify_tensors` of `InternLM2Model`, whose heads are in groups, and of two others."""
    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads", num_heads)
    if architecture is MODEL_ARCH.BAICHUAN:
        query, key, value = np.split(one.data, 3)
    elif architecture is MODEL_ARCH.BAILINGMOE:
        size = one.data.shape[0] // (num_heads + 2 * num_kv_heads)
        ends = [size * num_heads, size * (num_heads + num_kv_heads)]
        query, key, value = np.split(one.data, ends)
    else:
        groups = one.data.reshape(
            num_kv_heads, num_heads // num_kv_heads + 2, -1, one.data.shape[-1]
        )
        query, key, value = (
            part.reshape(-1, one.data.shape[-1])
            for part in (groups[:, :-2], groups[:, -2], groups[:, -1])
        )
    yield f"{prefix}q.weight", _Stored(_permuted(query, num_heads), one.kind)
    yield f"{prefix}k.weight", _Stored(_permuted(key, num_kv_heads), one.kind)
    yield f"{prefix}v.weight", _Stored(value, one.kind)


def _gpt_oss(name: str, one: _Stored) -> Iterator[tuple[str, _Stored]]:
    """`GptOssModel.modify_tensors`: gates and ups alternate, matrices are [in, out]."""
    match = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj(_bias)?", name)
    if match is None:
        yield name + (".weight" if name.endswith("sinks") else ""), one
        return
    suffix = "bias" if match[3] else "weight"
    data = one.data if match[3] else one.data.swapaxes(1, 2)
    parts = {"gate": data[:, ::2], "up": data[:, 1::2]}
    for part, numbers in parts.items() if match[2] == "gate_up" else {"down": data}.items():
        yield f"{match[1]}.{part}_proj.{suffix}", _Stored(numbers, one.kind)


def _permuted(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """`LlamaModel.permute`."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _falcon_kv_heads(config: dict[str, Any], num_heads: int) -> int:
    if config["model_type"] in ("bloom", "gpt_neox"):
        return num_heads
    return int(config.get("num_kv_heads") or 1) if config.get("new_decoder_architecture") else 1


def _by_kind(rows: np.ndarray, num_heads: int, num_kv_heads: int) -> np.ndarray:
    """`FalconModel.modify_tensors`; BLOOM's is the case of a key for each query."""
    size = rows.shape[0] // (num_heads + 2 * num_kv_heads)
    groups = rows.reshape(num_kv_heads, num_heads // num_kv_heads + 2, size, *rows.shape[1:])
    parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
    return np.concatenate([part.reshape(-1, *rows.shape[1:]) for part in parts])
