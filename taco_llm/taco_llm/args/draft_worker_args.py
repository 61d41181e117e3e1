"""A draft worker's arguments: draft model, quantization, library, KV cache size."""

from dataclasses import dataclass, field, fields
from typing import Any

from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import DRAFTER, flag
from taco_llm.args.model_location import locate_model
from taco_llm.args.scheduler_args import check_at_least
from taco_proto.config import DrafterConfig, ModelConfig
from taco_proto.errors import ArgumentError
from taco_worker.quant.registry import quantization_names

_DRAFTER = (DRAFTER,)
_ENGINE_FIELDS = {item.name: item for item in fields(EngineArgs)}


def _engine_field(name: str) -> Any:
    """The field of `EngineArgs` called `name`, here for the draft model."""
    item = _ENGINE_FIELDS[name]
    return field(default=item.default, metadata=item.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWorkerArgs:
    """Arguments of `taco_llm draft-worker`.

    Raises:
        ConfigurationError: a value is out of range.
    """

    speculative_model: str = flag(
        "Draft model: a directory, a Hugging Face hub id, or a bundled model such as demo-draft. "
        "Its vocabulary must be that of the served model.",
        _DRAFTER,
        metavar="MODEL",
    )
    quantization: str | None = flag(
        "Quantization of the weights: int8 stores them in 8 bits with one scale per output and "
        "halves the cost of a draft token; none keeps the checkpoint's format. Default: int8 with "
        "--draft-backend kernels if the checkpoint is not quantized, else none.",
        _DRAFTER,
        default=None,
        choices=(*quantization_names(), "none"),
    )
    draft_backend: str = _engine_field("draft_backend")
    dtype: str = _engine_field("dtype")
    load_format: str = _engine_field("load_format")
    revision: str | None = _engine_field("revision")
    download_dir: str | None = _engine_field("download_dir")
    max_model_len: int | None = _engine_field("max_model_len")
    num_threads: int | None = _engine_field("num_threads")
    max_num_seqs: int = flag(
        "Number of sequences of maximum length that the KV cache holds, if memory allows. Beyond "
        "it the draft worker evicts the least recently used sequence and recomputes it later.",
        _DRAFTER,
        default=256,
        parse=int,
        metavar="SEQUENCES",
    )
    num_gpu_blocks_override: int | None = flag(
        "Number of KV cache blocks of 16 tokens. Default: as many as --max-num-seqs needs and "
        "memory allows.",
        _DRAFTER,
        default=None,
        parse=int,
        metavar="BLOCKS",
        is_advanced=True,
    )

    def __post_init__(self) -> None:
        if not self.speculative_model:
            raise ArgumentError(
                "speculative_model is empty: give a directory, a hub id or a bundled model"
            )
        for name in ("max_model_len", "num_threads", "max_num_seqs", "num_gpu_blocks_override"):
            check_at_least(name, getattr(self, name), 1)

    def drafter_config(self, scheduler: str, name: str) -> DrafterConfig:
        """The draft worker's configuration.

        Raises:
            ConfigurationError: the model is neither a directory with config.json, nor a bundled
                model, nor a hub id.
        """
        model = ModelConfig(
            model=locate_model(
                self.speculative_model,
                revision=self.revision,
                download_dir=self.download_dir,
                load_format=self.load_format,
            ),
            served_model_names=(self.speculative_model,),
            revision=self.revision,
            download_dir=self.download_dir,
            load_format=self.load_format,
            dtype=self.dtype,
            quantization=self.quantization,
            max_model_len=self.max_model_len,
        )
        return DrafterConfig(
            model=model,
            scheduler=scheduler,
            name=name,
            backend=self.draft_backend,
            num_threads=self.num_threads,
            max_num_seqs=self.max_num_seqs,
            num_blocks=self.num_gpu_blocks_override,
        )
