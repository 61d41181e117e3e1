"""Makes the fields of a config.json from the metadata of GGUF files, by architecture.

Source: `set_gguf_parameters` of the classes in llama.cpp's `conversion/`, and what its readers in
`src/models/` assume where a file says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taco_worker.quant.gguf.config.gpt_family import GPT_FAMILY
from taco_worker.quant.gguf.config.llama_family import LLAMA_FAMILY, granite_factors
from taco_worker.quant.gguf.config.mixtures import MIXTURES
from taco_worker.quant.gguf.config.recurrent import RECURRENT
from taco_worker.quant.gguf.config.shared_experts import SHARED_EXPERTS
from taco_worker.quant.gguf.config.source import (
    ConfigSource,
    Fields,
    decoder,
    experts,
    layer_norm_epsilon,
    layer_types,
)
from taco_worker.quant.gguf.config.uneven_layers import UNEVEN_LAYERS

_LAYERS_WITH_ALIBI = 40  # of Baichuan


def _llama(source: ConfigSource) -> Fields:
    biases = {"attention_bias": source.has("attn_q.bias"), "mlp_bias": source.has("ffn_gate.bias")}
    if source.metadata.optional_size("expert_count"):
        mixture = experts(source, "num_local_experts")
        return decoder(source, "MixtralForCausalLM", "mixtral", **mixture, sliding_window=None)
    return decoder(source, "LlamaForCausalLM", "llama", **biases)


def _mistral3(source: ConfigSource) -> Fields:
    """Mistral, or Ministral 3 if queries grow with the position."""
    beta = source.metadata.optional_number("attention.temperature_scale")
    if not beta:
        return decoder(source, "MistralForCausalLM", "mistral", sliding_window=None)
    fields = decoder(source, "Ministral3ForCausalLM", "ministral3", sliding_window=None)
    amplitude = source.metadata.number("rope.scaling.yarn_log_multiplier", 1.0)
    fields["rope_parameters"] = {
        **fields.pop("rope_scaling", {"rope_type": "default"}),
        "rope_theta": fields.pop("rope_theta"),
        "mscale": amplitude,
        "mscale_all_dim": amplitude,
        "llama_4_scaling_beta": beta,
    }
    return fields


def _qwen2_vl(source: ConfigSource) -> Fields:
    """The text part; positions of texts are the same on all axes."""
    sections = source.metadata.get("rope.dimension_sections")
    if not isinstance(sections, list) or len(sections) < 3:
        raise ValueError(f"qwen2vl.rope.dimension_sections must be a list, not {sections!r:.100}")
    fields = _qwen2(source)
    scaling = fields.get("rope_scaling", {"rope_type": "default"})
    names = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}
    return {**fields, **names, "rope_scaling": {**scaling, "mrope_section": sections[:3]}}


def _qwen2(source: ConfigSource) -> Fields:
    return decoder(source, "Qwen2ForCausalLM", "qwen2", use_sliding_window=False)


def _qwen3(source: ConfigSource) -> Fields:
    """Qwen 3, and the text part of Qwen3-VL: positions of texts are the same on all axes."""
    return decoder(source, "Qwen3ForCausalLM", "qwen3", use_sliding_window=False)


def _olmo2(source: ConfigSource) -> Fields:
    """OLMo 2, or OLMo 3 if it has windows; layers with one have no scaled positions."""
    metadata = source.metadata
    window = metadata.optional_size("attention.sliding_window")
    if window is None:
        return decoder(source, "Olmo2ForCausalLM", "olmo2")
    types = layer_types(source, 4)
    fields = decoder(source, "Olmo3ForCausalLM", "olmo3", sliding_window=window, layer_types=types)
    theta = fields.pop("rope_theta")
    scaling = fields.pop("rope_scaling", {"rope_type": "default"})
    local = metadata.number("rope.freq_base_swa", theta)
    fields["rope_parameters"] = {
        "full_attention": {**scaling, "rope_theta": theta},
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }
    return fields


def _gemma(source: ConfigSource) -> Fields:
    activation = "gelu_pytorch_tanh"
    return decoder(source, "GemmaForCausalLM", "gemma", hidden_activation=activation)


def _gemma2(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "Gemma2ForCausalLM",
        "gemma2",
        hidden_activation="gelu_pytorch_tanh",
        attn_logit_softcapping=source.metadata.optional_number("attn_logit_softcapping"),
        final_logit_softcapping=source.metadata.optional_number("final_logit_softcapping"),
        sliding_window=source.metadata.size("attention.sliding_window", 4096),
        query_pre_attn_scalar=_gemma_scalar(source, layers_of_27b=46),
    )


def _gemma3(source: ConfigSource) -> Fields:
    metadata = source.metadata
    window = metadata.optional_size("attention.sliding_window")
    fields = decoder(
        source,
        "Gemma3ForCausalLM",
        "gemma3_text",
        hidden_activation="gelu_pytorch_tanh",
        final_logit_softcapping=metadata.optional_number("final_logit_softcapping"),
        sliding_window=window,
        layer_types=layer_types(source, 6 if window else 1),
        query_pre_attn_scalar=_gemma_scalar(source, layers_of_27b=62),
        rope_local_base_freq=metadata.number("rope.freq_base_swa", 10_000.0),
    )
    if metadata.get("rope.freq_base") is None:
        fields["rope_theta"] = 1_000_000.0
    return fields


def _gemma_scalar(source: ConfigSource, layers_of_27b: int) -> int:
    """The size of a head, except in the models with 27 billion parameters."""
    if source.num_layers == layers_of_27b:
        return source.hidden_size // source.num_heads
    return source.head_dim


def _phi2(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "PhiForCausalLM",
        "phi",
        hidden_act="gelu_new",
        layer_norm_eps=layer_norm_epsilon(source),
        partial_rotary_factor=source.partial_rotary_factor,
    )


def _phi3(source: ConfigSource) -> Fields:
    metadata = source.metadata
    fields = decoder(
        source,
        "Phi3ForCausalLM",
        "phi3",
        sliding_window=metadata.optional_size("attention.sliding_window"),
        partial_rotary_factor=source.partial_rotary_factor,
    )
    if original := metadata.optional_size("rope.scaling.original_context_length"):
        fields["original_max_position_embeddings"] = original
    return fields


def _starcoder2(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "Starcoder2ForCausalLM",
        "starcoder2",
        norm_epsilon=layer_norm_epsilon(source),
        use_bias=source.has("attn_q.bias"),
        sliding_window=source.metadata.optional_size("attention.sliding_window"),
    )


def _stablelm(source: ConfigSource) -> Fields:
    is_parallel = not source.has("ffn_norm.weight")
    return decoder(
        source,
        "StableLmForCausalLM",
        "stablelm",
        layer_norm_eps=layer_norm_epsilon(source),
        use_qkv_bias=source.has("attn_q.bias"),
        qk_layernorm=source.has("attn_q_norm.weight"),
        use_parallel_residual=source.metadata.flag("use_parallel_residual", is_parallel),
        partial_rotary_factor=source.partial_rotary_factor,
    )


def _nemotron(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "NemotronForCausalLM",
        "nemotron",
        norm_eps=layer_norm_epsilon(source),
        hidden_act="relu2",
        attention_bias=source.has("attn_q.bias"),
        mlp_bias=source.has("ffn_up.bias"),
        partial_rotary_factor=source.partial_rotary_factor,
    )


def _cohere(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "CohereForCausalLM",
        "cohere",
        layer_norm_eps=layer_norm_epsilon(source),
        logit_scale=source.metadata.number("logit_scale"),
        use_qk_norm=source.has("attn_q_norm.weight"),
    )


def _cohere2(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "Cohere2ForCausalLM",
        "cohere2",
        layer_norm_eps=layer_norm_epsilon(source),
        logit_scale=source.metadata.number("logit_scale"),
        sliding_window=source.metadata.size("attention.sliding_window"),
        layer_types=layer_types(source, 4),
    )


def _granite(source: ConfigSource) -> Fields:
    bias = source.has("attn_q.bias")
    factors = granite_factors(source)
    return decoder(source, "GraniteForCausalLM", "granite", attention_bias=bias, **factors)


def _granite_moe(source: ConfigSource) -> Fields:
    fields = {**_granite(source), **experts(source, "num_local_experts")}
    if source.has("ffn_up_shexp.weight"):
        fields["shared_intermediate_size"] = source.rows("ffn_up_shexp.weight")
        names = {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"}
        return {**fields, **names}
    return {**fields, "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe"}


def _glm4(source: ConfigSource) -> Fields:
    if source.metadata.get("rope.dimension_sections") is not None:
        raise ValueError("GLM 4V, whose positions have several axes, is not supported")
    return decoder(
        source,
        "Glm4ForCausalLM",
        "glm4",
        attention_bias=source.has("attn_q.bias"),
        partial_rotary_factor=source.partial_rotary_factor,
    )


def _smollm3(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "SmolLM3ForCausalLM",
        "smollm3",
        no_rope_layer_interval=4,
        use_sliding_window=False,
    )


def _xverse(source: ConfigSource) -> Fields:
    return decoder(source, "XverseForCausalLM", "xverse")


def _chatglm(source: ConfigSource) -> Fields:
    """ChatGLM 3 and GLM 4 9B: one architecture with two forms of names."""
    return decoder(
        source,
        "GlmForCausalLM",
        "glm",
        attention_bias=source.has("attn_q.bias") or source.has("attn_qkv.bias"),
        partial_rotary_factor=source.partial_rotary_factor,
    )


def _internlm2(source: ConfigSource) -> Fields:
    """Llama, since files have queries, keys and values apart."""
    return decoder(source, "LlamaForCausalLM", "llama", attention_bias=source.has("attn_q.bias"))


def _baichuan(source: ConfigSource) -> Fields:
    """Files do not say which models have ALiBi: those of 40 layers (13B)."""
    fields = decoder(source, "BaichuanForCausalLM", "baichuan")
    if source.num_layers == _LAYERS_WITH_ALIBI:
        fields["model_max_length"] = fields.pop("max_position_embeddings")
    return fields


ARCHITECTURES: Mapping[str, Callable[[ConfigSource], Fields]] = {
    "llama": _llama,
    "mistral3": _mistral3,
    "qwen2": _qwen2,
    "qwen2vl": _qwen2_vl,
    "qwen3": _qwen3,
    "qwen3vl": _qwen3,
    "olmo2": _olmo2,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi2": _phi2,
    "phi3": _phi3,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "nemotron": _nemotron,
    "command-r": _cohere,
    "cohere2": _cohere2,
    "granite": _granite,
    "granitemoe": _granite_moe,
    "glm4": _glm4,
    "smollm3": _smollm3,
    "xverse": _xverse,
    "chatglm": _chatglm,
    "internlm2": _internlm2,
    "baichuan": _baichuan,
    **GPT_FAMILY,
    **LLAMA_FAMILY,
    **MIXTURES,
    **RECURRENT,
    **SHARED_EXPERTS,
    **UNEVEN_LAYERS,
}
