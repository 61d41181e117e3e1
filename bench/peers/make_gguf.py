"""Writes a checkpoint of `make_checkpoint.py` as llama.cpp's GGUF, with the same bf16 weights.

    DIRECTORY/llama/bin/python bench/peers/make_gguf.py CHECKPOINT FILE

llama.cpp's own converter rejects a made-up tokenizer. The layout follows that converter: matrices
stay in bf16, an expert's matrices are stacked in expert order, vectors and routers become fp32.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.utility import LocalTensor, SafetensorsLocal

# By `model_type`: the dimensions of attention and MLP that all have are the same.
ARCHITECTURES = {
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
}
ROUTER = "ffn_gate_inp"
# Of Qwen3.5: pairs that each axis of the positions turns; all axes are equal for text.
_SECTIONS = [11, 11, 10, 0]
_EXPERT = re.compile(r"(?P<prefix>.*\.experts)\.(?P<expert>\d+)\.(?P<name>\w+)\.weight")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    config = json.loads((args.checkpoint / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(args.file, gguf.MODEL_ARCH_NAMES[architecture])
    _add_dimensions(writer, config)
    _add_tokens(writer, args.checkpoint / "tokenizer.json", config)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, parts in _stacked(args.checkpoint):
        table_name = name.replace(".dt_bias", ".dt_proj.bias")
        gguf_name = names.get_name(table_name, try_suffixes=(".weight", ".bias"))
        if gguf_name is None:
            raise ValueError(f"llama.cpp has no tensor for {name}")
        is_qwen35 = architecture == gguf.MODEL_ARCH.QWEN35
        numbers = _stored_numbers(name, _numbers(parts)) if is_qwen35 else None
        if numbers is None:
            _add_tensor(writer, gguf_name, parts)
        else:
            writer.add_tensor(gguf_name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_dimensions(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if "linear_num_value_heads" in config:
        _add_recurrence(writer, config)
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])


def _add_recurrence(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    head_dim = config["head_dim"]
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rotary = config["rope_parameters"]["partial_rotary_factor"]
    writer.add_rope_dimension_count(int(head_dim * rotary))
    writer.add_rope_dimension_sections(_SECTIONS)
    value_heads = config["linear_num_value_heads"]
    if value_heads != config["linear_num_key_heads"]:
        raise ValueError("llama.cpp orders value heads by key head where these are fewer")
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(value_heads)
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * value_heads)
    writer.add_full_attention_interval(4)


def _add_tokens(writer: gguf.GGUFWriter, tokenizer_file: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads(tokenizer_file.read_text())
    tokens = [""] * config["vocab_size"]
    for token, token_id in tokenizer["model"]["vocab"].items():
        tokens[token_id] = token
    types = [gguf.TokenType.NORMAL] * len(tokens)
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    # llama.cpp requires one; prompts are ids, so none applies.
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]] or ["0 0"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _stacked(checkpoint: Path) -> Iterator[tuple[str, list[LocalTensor]]]:
    """Yields each tensor's name and its parts; the parts of an expert matrix are the experts'."""
    parts: dict[str, dict[int, LocalTensor]] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        for name, tensor in SafetensorsLocal(file).tensors.items():
            expert = _EXPERT.fullmatch(name)
            stacked = f"{expert['prefix']}.{expert['name']}.weight" if expert else name
            parts.setdefault(stacked, {})[int(expert["expert"]) if expert else 0] = tensor
    for name, by_expert in parts.items():
        yield name, [by_expert[index] for index in range(len(by_expert))]


def _numbers(parts: list[LocalTensor]) -> npt.NDArray[np.float32]:
    bits = np.concatenate([np.frombuffer(part.mmap_bytes(), np.uint16) for part in parts])
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(parts[0].shape)


def _stored_numbers(name: str, numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
    """The float32 numbers that Qwen3.5 has in place of a tensor's; None: its own, in bf16."""
    if name.endswith(".A_log"):
        return -np.exp(numbers)
    if name.endswith(".dt_bias"):
        return numbers
    if ".conv1d." in name:
        return numbers.squeeze(1)
    if name.endswith("norm.weight"):
        return numbers if ".linear_attn." in name else numbers + 1
    return None


def _add_tensor(writer: gguf.GGUFWriter, name: str, parts: list[LocalTensor]) -> None:
    assert {part.dtype for part in parts} == {"BF16"}, name
    shape = parts[0].shape
    bits = np.concatenate([np.frombuffer(part.mmap_bytes(), np.uint16) for part in parts])
    if len(shape) == 1 or ROUTER in name:
        writer.add_tensor(name, (bits.astype(np.uint32) << 16).view(np.float32).reshape(shape))
        return
    stacked = (len(parts), *shape) if len(parts) > 1 else shape
    writer.add_tensor(
        name,
        bits.reshape(stacked).view(np.uint8),
        raw_dtype=gguf.GGMLQuantizationType.BF16,
    )


if __name__ == "__main__":
    main()
