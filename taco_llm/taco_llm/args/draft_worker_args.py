"""A draft worker's arguments: which model drafts, and with what it computes."""

from dataclasses import dataclass, field, fields
from typing import Any

from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import DRAFTER, flag
from taco_llm.args.model_location import locate_model
from taco_llm.args.scheduler_args import check_at_least
from taco_proto.config import DrafterConfig, ModelConfig
from taco_proto.errors import ConfigurationError

_DRAFTER = (DRAFTER,)
_ENGINE_FIELDS = {item.name: item for item in fields(EngineArgs)}


def _as_of_engine(name: str) -> Any:
    """A field that means of the draft model what the engine's means of its own."""
    item = _ENGINE_FIELDS[name]
    return field(default=item.default, metadata=item.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWorkerArgs:
    """Arguments of a draft worker that runs alone.

    Raises:
        ConfigurationError: a value is out of range.
    """

    speculative_model: str = flag(
        "The draft model: a directory, a Hugging Face hub id, or a bundled model such as "
        "demo-draft. It must have the vocabulary of the model that it drafts for.",
        _DRAFTER,
        metavar="MODEL",
    )
    quantization: str | None = flag(
        "int8 keeps weights in 8 bits, with a scale for each output, and halves what a draft token "
        "costs; none keeps the model's own number format. Without it our kernels take int8, and "
        "torch and ipex none.",
        _DRAFTER,
        default=None,
        choices=("int8", "none"),
    )
    draft_backend: str = _as_of_engine("draft_backend")
    dtype: str = _as_of_engine("dtype")
    load_format: str = _as_of_engine("load_format")
    revision: str | None = _as_of_engine("revision")
    download_dir: str | None = _as_of_engine("download_dir")
    max_model_len: int | None = _as_of_engine("max_model_len")
    num_threads: int | None = _as_of_engine("num_threads")
    max_num_seqs: int = flag(
        "Sequences of the longest kind that the KV cache is made for, where memory allows. More of "
        "them may come: then those that were drafted for least recently are computed again.",
        _DRAFTER,
        default=256,
        parse=int,
        metavar="SEQUENCES",
    )
    num_gpu_blocks_override: int | None = flag(
        "Number of KV blocks of 16 tokens. Without it as many are made as memory allows.",
        _DRAFTER,
        default=None,
        parse=int,
        metavar="BLOCKS",
    )

    def __post_init__(self) -> None:
        if not self.speculative_model:
            raise ConfigurationError("no speculative_model is given")
        for name in ("max_model_len", "num_threads", "max_num_seqs", "num_gpu_blocks_override"):
            check_at_least(name, getattr(self, name), 1)

    def drafter_config(self, scheduler: str, name: str) -> DrafterConfig:
        """Raises ConfigurationError: the model is neither a directory with config.json, nor
        bundled, nor a hub id."""
        model = ModelConfig(
            model=locate_model(self.speculative_model),
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
