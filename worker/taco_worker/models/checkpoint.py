"""Finds the checkpoint that a configuration names, and reads how it is configured."""

from __future__ import annotations

from pathlib import Path

from taco_proto.config import ModelConfig as WantedModel
from taco_worker.models.code_segments import code_segments
from taco_worker.models.config import ModelConfig, load_hf_config
from taco_worker.models.hub import resolve_model
from taco_worker.models.load_format import load_format_of, tensorizer_file_of
from taco_worker.models.lora.adapter import check_mergeable
from taco_worker.models.lora.locating import resolve_adapter


def find_checkpoint(wanted: WantedModel) -> ModelConfig:
    """The configuration of the checkpoint that `wanted` names; a hub id is downloaded.

    Raises:
        ValueError: the model cannot be found, or its configuration cannot be read.
    """
    directory = resolve_model(
        wanted.model,
        revision=wanted.revision,
        download_dir=None if wanted.download_dir is None else Path(wanted.download_dir),
        ignore_patterns=wanted.ignore_patterns,
        is_mistral=load_format_of(wanted) == "mistral",
    )
    return read_checkpoint(wanted, directory)


def read_checkpoint(wanted: WantedModel, directory: Path) -> ModelConfig:
    """The configuration of the model in `directory`, with what `wanted` overrides.

    Raises:
        ValueError: the configuration of the model cannot be read, or `wanted` contradicts it.
    """
    download_dir = None if wanted.download_dir is None else Path(wanted.download_dir)
    adapter = None
    if wanted.merge_lora is not None:
        adapter = resolve_adapter(wanted.merge_lora, download_dir)
    lora_modules = tuple(
        (name, resolve_adapter(path, download_dir)) for name, path in wanted.lora_modules
    )
    config = load_hf_config(
        directory,
        rope_scaling=wanted.rope_scaling,
        rope_theta=wanted.rope_theta,
        config_format=wanted.config_format,
        hf_overrides=wanted.hf_overrides,
        disable_sliding_window=wanted.disable_sliding_window,
        quantization=wanted.quantization,
        load_format=load_format_of(wanted),
        tensorizer_file=tensorizer_file_of(wanted),
        adapter=adapter,
        lora_modules=lora_modules,
    )
    check_mergeable(config)
    online = config.online_quantization
    if online is not None and not code_segments(config.plan, None, online):
        raise ValueError(
            f"quantization {online.method!r} changes nothing: it needs a model with experts; int8, "
            "fp8 and bitsandbytes quantize any model"
        )
    return config
