"""Reads a checkpoint's config.json and generation_config.json into `ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from taco_common.json_file import read_json_object
from taco_worker.kv_scales.stored_kv_cache import StoredKVCache, stored_kv_cache
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.config_reading import TIED, config_file, read_hf_config
from taco_worker.models.converted.header import is_converted
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.registry import find_recipe
from taco_worker.models.rope_parsing import check_rope_names, check_rope_type, is_by_layer_type
from taco_worker.models.stored_layouts import with_stored_layouts
from taco_worker.models.stored_modules import with_stored_modules
from taco_worker.models.tied_embeddings import has_tied_head, with_stored_embeddings
from taco_worker.models.weight_files import CheckpointFiles, LoadFormat
from taco_worker.quant.config_files import quantization_config
from taco_worker.quant.registry import read_online_quantization, read_quantization
from taco_worker.quant.weight_format import OnlineQuantization, Quantization

SAMPLING_DEFAULT_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

# Upper limits: several times the largest published models, under Hugging Face's config names.
_MAX_LAYERS, _MAX_WIDTH, _MAX_LENGTH = 1024, 2**20, 2**24
_MAX_SIZES = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), _MAX_LAYERS),
    **dict.fromkeys(("hidden_size", "n_embd", "intermediate_size", "ffn_dim"), _MAX_WIDTH),
    **dict.fromkeys(("n_inner", "word_embed_proj_dim", "head_dim"), _MAX_WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads"), _MAX_WIDTH),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "vocab_size"), _MAX_LENGTH),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The contents of config.json and generation_config.json of one model directory.

    Attributes:
        files: of the model, and how its weights are read.
        architecture: the first entry of `architectures` that has a recipe.
        quantization: of the checkpoint; None: it is not quantized.
        online_quantization: quantizes its matrices at load; None: nothing does.
        model_type: according to config.json, if any.
        stored_kv_cache: what the checkpoint's quantization asks for; None: nothing.
        checkpoint_dtype: the name of the weights' dtype according to config.json, if any.
        eos_token_ids: ids that end a sequence, in the order of the files, without repeats.
        sampling_defaults: the SAMPLING_DEFAULT_KEYS that generation_config.json sets.
    """

    files: CheckpointFiles
    architecture: str
    plan: ModelPlan
    quantization: Quantization | None
    online_quantization: OnlineQuantization | None
    model_type: str | None
    stored_kv_cache: StoredKVCache | None
    checkpoint_dtype: str | None
    eos_token_ids: tuple[int, ...]
    sampling_defaults: Mapping[str, float]

    @property
    def has_codes(self) -> bool:
        """Whether matrices are codes in the checkpoint, or become codes at load."""
        return self.quantization is not None or self.online_quantization is not None


def load_hf_config(
    model_dir: Path,
    *,
    rope_scaling: Mapping[str, Any] | None = None,
    rope_theta: float | None = None,
    config_format: str = "auto",
    hf_overrides: Mapping[str, Any] | None = None,
    disable_sliding_window: bool = False,
    quantization: str | None = None,
    load_format: LoadFormat = "auto",
    tensorizer_file: Path | None = None,
    adapter: Path | None = None,
    lora_modules: tuple[tuple[str, Path], ...] = (),
) -> ModelConfig:
    """Read a model directory's configuration.

    Args:
        rope_scaling, rope_theta: override config.json's rotary position settings; empty, None: keep
            them.
        config_format: hf (config.json), mistral (params.json), or auto: the one that exists.
        hf_overrides: replace fields of the configuration; objects are merged.
        disable_sliding_window: limit sequences to the window, so that it never applies.
        quantization: the method, as `--quantization` takes it; None: the checkpoint's own.
        load_format, tensorizer_file: of the weight files, whose headers tell what is quantized;
            auto finds converted weights too.
        adapter: directory of a LoRA adapter that is merged into the weights.
        lora_modules: names and directories of the adapters that requests may name.

    Raises:
        ValueError: a file is missing, is not JSON or lacks a field, the architecture has no
            recipe, the checkpoint needs an option that no recipe supports, or its quantization is
            unknown or not the wanted one.
    """
    if load_format == "auto" and is_converted(model_dir):
        load_format = "sharded_state"
    files = CheckpointFiles(model_dir, load_format, tensorizer_file, adapter, lora_modules)
    file = config_file(model_dir, config_format)
    try:
        hf_config = read_hf_config(file, hf_overrides)
    except FileNotFoundError:
        raise ValueError(f"cannot read {file}: No such file") from None
    generation_path = model_dir / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.exists() else {}
    _check_sizes(file, hf_config)
    _check_types(file, hf_config)
    if hf_config.get(TIED, False) is None:
        hf_config[TIED] = has_tied_head(files)
    try:
        if not rope_scaling:
            check_rope_names(hf_config)
        config = _parse(files, _override_rope(hf_config, rope_scaling, rope_theta), generation)
        plan = with_stored_layouts(with_stored_embeddings(config.plan, files), files)
        settings = quantization_config(model_dir, hf_config)
        # What converted weights are, their header says.
        wanted = None if is_converted(model_dir) else quantization
        rules = read_quantization(settings, model_dir, wanted)
        stored = rules and with_stored_modules(rules, settings or {}, plan, files)
        online = read_online_quantization(quantization) if stored is None else None
        config = replace(
            config,
            plan=plan,
            quantization=stored,
            online_quantization=online,
            stored_kv_cache=stored_kv_cache(settings or hf_config),
        )
    except KeyError as error:
        raise ValueError(f"{file} has no {error}") from None
    except (TypeError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"{model_dir} has a config with an invalid field: {error}") from None
    if not plan.has_rope and (rope_scaling or rope_theta):
        raise ValueError(
            f"{config.architecture} has no rotary positions: rope settings do not apply to it"
        )
    if disable_sliding_window:
        length = min((plan.max_position_embeddings, *plan.windows))
        return replace(config, plan=replace(plan, max_position_embeddings=length))
    return config


def _parse(
    files: CheckpointFiles, hf_config: Mapping[str, Any], generation: Mapping[str, Any]
) -> ModelConfig:
    architecture, recipe = find_recipe(hf_config.get("architectures") or [])
    fields = ConfigFields(hf_config)
    fields.only("is_causal", True)  # transformers reads it for every architecture
    plan = recipe(fields, architecture)
    model_type = hf_config.get("model_type")
    dtype = hf_config.get("dtype") or hf_config.get("torch_dtype")
    end_ids = _eos_token_ids(generation, hf_config)
    return ModelConfig(
        files=files,
        architecture=architecture,
        plan=plan,
        quantization=None,
        online_quantization=None,
        model_type=None if model_type is None else str(model_type),
        stored_kv_cache=None,
        checkpoint_dtype=None if dtype is None else str(dtype),
        eos_token_ids=tuple(one for one in end_ids if one < plan.vocab_size),
        sampling_defaults=MappingProxyType(
            {
                key: float(generation[key])
                for key in SAMPLING_DEFAULT_KEYS
                if generation.get(key) is not None
            }
        ),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except FileNotFoundError:
        raise ValueError(f"cannot read {path}: No such file") from None


def _check_sizes(path: Path, hf_config: Mapping[str, Any]) -> None:
    """Raises ValueError for a size beyond all published models, before anything is allocated."""
    for name, limit in _MAX_SIZES.items():
        value = hf_config.get(name)
        if isinstance(value, int) and value > limit:
            raise ValueError(f"{path}: {name} is {value}, and at most {limit} is supported")


def _check_types(path: Path, hf_config: Mapping[str, Any]) -> None:
    """Raises ValueError for fields whose values are of another type than their readers expect."""
    objects = ("rope_parameters", "rope_scaling", "quantization_config", "compression_config")
    for name in objects:
        value = hf_config.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{path}: {name} must be an object, not {value!r:.100}")
    names = hf_config.get("architectures")
    if names is not None and not (
        isinstance(names, list) and all(isinstance(one, str) for one in names)
    ):
        raise ValueError(f"{path}: architectures must be a list of names, not {names!r:.100}")


def _override_rope(
    hf_config: dict[str, Any], rope_scaling: Mapping[str, Any] | None, rope_theta: float | None
) -> dict[str, Any]:
    """Apply the overrides under the keys that `parse_rotary` reads first."""
    if not rope_scaling and rope_theta is None:
        return hf_config
    if rope_scaling:
        check_rope_type(rope_scaling)
    if is_by_layer_type(hf_config.get("rope_parameters") or {}):
        raise ValueError("rope settings by layer type cannot be overridden: edit config.json")
    current = hf_config.get("rope_parameters") or {
        **(hf_config.get("rope_scaling") or {}),
        "rope_theta": hf_config.get("rope_theta"),
    }
    scaling = rope_scaling or current
    theta = scaling.get("rope_theta") or current.get("rope_theta")
    theta = theta if rope_theta is None else rope_theta
    parameters = {**scaling, "rope_theta": theta}
    return {**hf_config, "rope_parameters": parameters, "rope_scaling": None}


def _eos_token_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """The end tokens of both files: each may name one that the other lacks."""
    ids: dict[int, None] = {}
    for config in configs:
        value = config.get("eos_token_id")
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is None:
                continue
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise ValueError(f"eos_token_id must be one or more integers, not {value!r:.100}")
            if token_id >= 0:  # some configs use -1 for none
                ids[token_id] = None
    return tuple(ids)
