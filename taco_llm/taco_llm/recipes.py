"""What recipes of other packages may import; see docs/adding-a-model.md.

Names of this module keep their meaning: a release that changes one says so in CHANGELOG.md. Other
modules of TACO may change in any release. No name here imports torch.
"""

from taco_kernels.kv_entry import KVEntry
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.external_recipes import ENTRY_POINT_GROUP, Recipe
from taco_worker.models.plan import ops, views
from taco_worker.models.plan.attention_block import (
    AttentionSpec,
    HeadNorm,
    Heads,
    RopeSpec,
    alibi_slopes,
    attention,
)
from taco_worker.models.plan.builder import Module, NormSpec, PlanBuilder, layer_norm, rms
from taco_worker.models.plan.decoder_block import (
    DecoderSpec,
    Head,
    LayerNorms,
    Mixer,
    Rotary,
    Sizes,
    decoder,
)
from taco_worker.models.plan.delta_block import DeltaHeads, DeltaNetSpec, delta_net
from taco_worker.models.plan.llama_block import (
    fused_mlp,
    head_norms,
    llama_attention,
    llama_mlp,
    llama_spec,
    read_heads,
    read_sizes,
    rotary_by_type,
    two_layer_mlp,
)
from taco_worker.models.plan.mamba_block import MambaSpec, mamba
from taco_worker.models.plan.mlp_block import (
    MlpSpec,
    MoeSpec,
    expert_layouts,
    gated_mlp,
    mlp,
    moe,
    plain_mlp,
)
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.short_conv_block import ShortConvSpec, short_convolution
from taco_worker.models.plan.slices import Slice
from taco_worker.models.plan.sliding_windows import layer_types, windows_by_depth, windows_by_type
from taco_worker.models.rope import RotaryConfig, scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_layer_rotary, parse_rotary

__all__ = [
    "ENTRY_POINT_GROUP",
    "AttentionSpec",
    "ConfigFields",
    "DecoderSpec",
    "DeltaHeads",
    "DeltaNetSpec",
    "Head",
    "HeadNorm",
    "Heads",
    "KVEntry",
    "LayerNorms",
    "MambaSpec",
    "Mixer",
    "MlpSpec",
    "ModelPlan",
    "Module",
    "MoeSpec",
    "NormSpec",
    "PlanBuilder",
    "Recipe",
    "RopeSpec",
    "Rotary",
    "RotaryConfig",
    "ShortConvSpec",
    "Sizes",
    "Slice",
    "Source",
    "TensorNames",
    "alibi_slopes",
    "attention",
    "decoder",
    "delta_net",
    "expert_layouts",
    "fused_mlp",
    "gated_mlp",
    "head_norms",
    "layer_norm",
    "layer_types",
    "llama_attention",
    "llama_mlp",
    "llama_spec",
    "mamba",
    "mlp",
    "moe",
    "ops",
    "parse_layer_rotary",
    "parse_rotary",
    "plain_mlp",
    "read_heads",
    "read_sizes",
    "rms",
    "rotary_by_type",
    "scaled_max_position_embeddings",
    "short_convolution",
    "two_layer_mlp",
    "views",
    "windows_by_depth",
    "windows_by_type",
]
