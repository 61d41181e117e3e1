"""`LLM` on models in GGUF: text in, the tokens of Hugging Face's model on the same numbers out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from support.architectures.variants import VARIANTS
from support.gguf_files.convert import write_gguf
from taco_llm import LLM, SamplingParams
from taco_proto.errors import ConfigurationError

pytestmark = pytest.mark.kernels

_ENGINE: dict[str, Any] = {
    "num_gpu_blocks_override": 64,
    "num_threads": 1,
    "max_num_seqs": 4,
    "dtype": "float32",
}
_SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
_GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
_PROMPT = "Serving a model, he said: 42!"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("llama-2-like", kind) for kind in ("F16", "Q4_0", "Q8_0", "Q4_K", "Q6_K")),
        *(("qwen2-like", kind) for kind in ("Q2_K", "Q3_K", "Q5_K", "IQ2_XXS", "IQ4_XS")),
        *(("qwen1.5-moe-like", kind) for kind in ("Q4_1", "IQ3_S", "MXFP4")),
        *(("gemma-2-like", kind) for kind in ("Q5_0", "TQ2_0", "IQ1_S")),
        *(("gpt2-like", kind) for kind in ("F16", "Q8_0")),
        *(("deepseek-v3-like", kind) for kind in ("Q4_0", "Q8_0")),
        *(("glm-4.5-like", kind) for kind in ("Q4_K", "Q6_K")),
    ],
)
def test_greedy_tokens(name: str, kind: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    changes: dict[str, Any] = dict(_SIZES)
    match name:
        case "qwen1.5-moe-like":
            changes |= {"moe_intermediate_size": 256, "mlp_only_layers": []}
        case "deepseek-v3-like":
            changes |= {"num_key_value_heads": 8, "moe_intermediate_size": 256}
            changes |= {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 32}
        case "glm-4.5-like":
            changes |= {"moe_intermediate_size": 256, "head_dim": 32, "partial_rotary_factor": 0.5}
        case "gemma-2-like":
            changes |= {"head_dim": 32, "query_pre_attn_scalar": 32}
        case "gpt2-like":
            changes = {"n_embd": 256, "n_head": 8}
    source = variant.make(tmp_path / "hf", **changes)
    file = write_gguf(source, tmp_path / "model.gguf", kind)
    oracle = variant.reference(source)
    prompt = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json")).encode(_PROMPT).ids
    with LLM(str(file), **_ENGINE) as llm:
        (output,) = llm.generate([_PROMPT], _GREEDY, use_tqdm=False)
    assert list(output.prompt_token_ids) == prompt
    assert list(output.outputs[0].token_ids) == oracle.greedy(prompt, 8)


def test_chat_template_and_end_tokens(tmp_path: Path) -> None:
    source = VARIANTS["llama-2-like"].make(tmp_path / "hf", **_SIZES)
    file = write_gguf(source, tmp_path / "model.gguf", "Q8_0")
    with LLM(str(file), quantization="gguf", load_format="gguf", **_ENGINE) as llm:
        (output,) = llm.chat([{"role": "user", "content": "hi"}], _GREEDY, use_tqdm=False)
        assert output.prompt == "<|bos|>user: hi<|end|>\nassistant: "
        assert output.prompt_token_ids[0] == 0


def test_one_line_before_anything_starts(tmp_path: Path) -> None:
    source = VARIANTS["llama-2-like"].make(tmp_path / "hf", **_SIZES)
    file = write_gguf(source, tmp_path / "model.gguf", "Q8_0")
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    with pytest.raises(ConfigurationError, match=r"model\.gguf: tensor '.*' has \d+ bytes from"):
        LLM(str(file), **_ENGINE)
    file.write_bytes(content.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"))
    with pytest.raises(ConfigurationError, match=r"missing tensors: model\.layers\.1\.mlp\.up"):
        LLM(str(file), **_ENGINE)
    file.write_bytes(content)
    with pytest.raises(
        ConfigurationError, match=r"are in model\.gguf: it needs --load-format gguf"
    ):
        LLM(str(file), load_format="safetensors", **_ENGINE)
    with pytest.raises(ConfigurationError, match=r"quantized so, and this one is no \.gguf file"):
        LLM(str(source), quantization="gguf", **_ENGINE)
    assert json.loads((source / "config.json").read_text())["hidden_size"] == 256
