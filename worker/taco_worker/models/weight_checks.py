"""Checks the headers of a checkpoint's weight files against its configuration, without torch."""

from __future__ import annotations

from taco_worker.models.config import ModelConfig
from taco_worker.models.converted.header import read_header
from taco_worker.models.lora.adapter import read_adapter
from taco_worker.models.lora.requested import read_requested
from taco_worker.models.tensor_check import TensorCheck
from taco_worker.models.weight_files import find_weight_files, stored_tensors
from taco_worker.models.weight_sources import WeightSources


def check_weight_files(config: ModelConfig) -> None:
    """Check that a model's weight files are complete and hold the architecture's tensors.

    It reads the headers of the files, and executes nothing of pickled ones.

    Raises:
        ValueError: a file is missing, empty or truncated, or its tensors are not the model's, or
            an adapter does not fit it.
    """
    model_dir = config.files.directory
    read_requested(config.plan, config.files.lora_modules)
    if config.files.load_format == "dummy":
        return
    if config.files.load_format == "sharded_state":
        read_header(model_dir).check(architecture=config.architecture)
        return
    files = find_weight_files(config.files)
    if empty := [file.name for file in files if not file.stat().st_size]:
        raise ValueError(f"weight files in {model_dir} are empty: {', '.join(empty)}")
    sources = WeightSources(config.plan, config.quantization)
    check = TensorCheck(model_dir)
    for file in files:
        for stored_name, tensor in stored_tensors(file).items():
            name = sources.canonical(stored_name)
            if name is None:
                continue
            if fills := sources.fills.get(name):
                check.fits(stored_name, name, tensor.shape, tensor.dtype, fills, file)
            elif not (sources.is_extra(name) or sources.may_be_zero_bias(name)):
                check.add_unexpected(stored_name)
    check.raise_for(sources.missing(check.found))
    if config.files.adapter is not None:
        read_adapter(config.files.adapter, config.plan, sources).check_found(check.found)
