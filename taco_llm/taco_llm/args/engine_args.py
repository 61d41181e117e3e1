"""The engine's arguments: which model, how much memory, how large a step."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from taco_llm.args.compatibility import takes_compatibility_arguments
from taco_llm.args.flags import GATEWAY, WORKER, flag, flag_fields, json_object, not_a_choice
from taco_llm.args.kv_tier_args import KVTierArgs
from taco_llm.args.license_args import LicenseArgs
from taco_llm.args.model_location import locate_model
from taco_llm.args.scheduler_args import SchedulerArgs, check_at_least
from taco_llm.args.speculation_args import SpeculationArgs
from taco_proto.config import DrafterConfig, ModelConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_worker.devices.gpu_presence import runs_on_cpu

_MODEL = (GATEWAY, WORKER)
_TEXT = (GATEWAY,)
_WORKER = (WORKER,)


_DEVICE_GROUP = "device and its memory"
_KV_GROUP = "KV cache"

# Arguments that only a GPU uses.
_GPU_ONLY = (
    "gpu_memory_utilization",
    "conservative_dry_run",
    "enforce_eager",
    "max_seq_len_to_capture",
    "cpu_offload_gb",
)
_CPU_BLOCK_SIZES = (16, 32)


def _flag_groups() -> dict[str, str]:
    """The help groups of the flags, by the names of their fields; all others are the model's."""
    groups: dict[str, str] = {}
    for table, title in (
        (LicenseArgs, "license"),
        (KVTierArgs, _KV_GROUP),
        (SpeculationArgs, "speculation: drafts and their verification"),
        (SchedulerArgs, "scheduling"),
    ):
        groups |= dict.fromkeys((item.name for item in flag_fields(table)), title)
    groups |= dict.fromkeys(("device", "attention_backend", "num_threads"), _DEVICE_GROUP)
    groups |= dict.fromkeys(_GPU_ONLY, _DEVICE_GROUP)
    cache = ("block_size", "kv_cache_dtype", "num_gpu_blocks_override", "enable_prefix_caching")
    groups |= dict.fromkeys(cache, _KV_GROUP)
    return groups | {name: _KV_GROUP for name in groups if name.startswith("apc_offload")}


@takes_compatibility_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs(LicenseArgs):
    """Arguments of the engine, for `LLM`, `AsyncLLMEngine` and the command line alike.

    Each is described by its flag: `taco_llm serve --help` prints all of them. None means the
    default of every argument. The arguments of vLLM that TACO does not have are taken as well; see
    `compatibility`.

    Attributes:
        given: the names of the arguments that were given.

    Raises:
        ConfigurationError: a value is out of range, contradicts another, or asks for a feature that
            is missing.
    """

    NONE_IS_DEFAULT: ClassVar[bool] = True
    FLAG_GROUPS: ClassVar[Mapping[str, str]] = _flag_groups()

    given: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)

    model: str = flag(
        "Model to serve: a directory with config.json and weights, a Hugging Face hub id such as "
        "facebook/opt-125m, or the name of a bundled model such as demo.",
        _MODEL,
    )
    served_model_name: tuple[str, ...] = flag(
        "Names that clients may put into the model field of requests. Responses have the first "
        "one. Default: MODEL as it was given.",
        _MODEL,
        default=(),
        several="extend",
        metavar="NAME",
    )
    tokenizer: str | None = flag(
        "Directory or hub id of the tokenizer. Without it the model's own tokenizer is used.",
        _TEXT,
        default=None,
        metavar="PATH",
    )
    tokenizer_mode: str = flag(
        "auto reads tokenizer.json with the fast tokenizers library; slow always uses the "
        "tokenizer of transformers.",
        _TEXT,
        default="auto",
        choices=("auto", "slow"),
    )
    skip_tokenizer_init: bool = flag(
        "Load no tokenizer: requests bring token ids and answers hold token ids only.",
        _TEXT,
        default=False,
    )
    revision: str | None = flag(
        "Branch, tag or commit of the model on the Hugging Face hub. Without it the default branch "
        "is taken.",
        _MODEL,
        default=None,
    )
    tokenizer_revision: str | None = flag(
        "Branch, tag or commit of the tokenizer on the Hugging Face hub.",
        _TEXT,
        default=None,
        metavar="REVISION",
    )
    download_dir: str | None = flag(
        "Directory to download models into. Without it the Hugging Face cache is used.",
        _MODEL,
        default=None,
        metavar="DIR",
    )
    ignore_patterns: tuple[str, ...] = flag(
        "Patterns of files not to download from the hub, such as 'original/**/*'. Folders and "
        "consolidated copies of the weights are never downloaded.",
        _WORKER,
        default=(),
        several="extend",
        metavar="PATTERN",
    )
    load_format: str = flag(
        "Which weights to load: auto prefers safetensors and falls back to .bin files, pt takes "
        "only .bin files, safetensors only safetensors, and dummy makes random weights for "
        "profiling.",
        _WORKER,
        default="auto",
        choices=("auto", "pt", "safetensors", "dummy"),
    )
    dtype: str = flag(
        "Number format of weights and activations. auto takes the format that the checkpoint "
        "names; half is float16 and float is float32. On a CPU float16 is computed in float32.",
        _WORKER,
        default="auto",
        choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
    )
    quantization: str | None = flag(
        "int8 stores weights in 8 bits, with a scale for each output, and rounds activations to 8 "
        "bits. The weights take half the memory of bfloat16, and decoding is faster.",
        _WORKER,
        default=None,
        choices=("int8",),
        short="-q",
    )
    max_model_len: int | None = flag(
        "Maximum tokens of a sequence, prompt and answer together. Default: the limit in the "
        "model's config.json.",
        _WORKER,
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    rope_scaling: Mapping[str, Any] | None = flag(
        "Rotary position scaling as a JSON object, for example "
        '\'{"rope_type": "linear", "factor": 2.0}\'. It replaces the one in the model\'s '
        "configuration.",
        _WORKER,
        default=None,
        parse=json_object,
        metavar="JSON",
    )
    rope_theta: float | None = flag(
        "Base of the rotary position frequencies. It replaces the one in the model's "
        "configuration.",
        _WORKER,
        default=None,
        parse=float,
        metavar="BASE",
    )
    seed: int = flag(
        "Seed of offline requests that have no seed, and of the random weights of --load-format "
        "dummy.",
        _WORKER,
        default=0,
        parse=int,
    )
    device: str = flag(
        "Device that runs the model: cpu, cuda, or cuda:1 for the second GPU. auto uses a GPU if "
        "there is one, else the CPU.",
        _WORKER,
        default="auto",
    )
    attention_backend: str | None = flag(
        "Attention implementation on a GPU: triton (TACO's own kernels), xformers (the xformers "
        "package) or torch (slow, for comparison). Default: the fastest one available.",
        _WORKER,
        default=None,
        choices=("triton", "xformers", "torch"),
    )
    gpu_memory_utilization: float = flag(
        "Maximum share of the GPU's memory in use. The KV cache gets what weights, activations "
        "and CUDA leave of it; a log line at start shows the amounts.",
        _WORKER,
        default=0.9,
        parse=float,
        metavar="SHARE",
    )
    conservative_dry_run: bool = flag(
        "Count all memory that the driver reports as used after the trial step, not only what "
        "torch needed. Use it if steps run out of memory although the start succeeded.",
        _WORKER,
        default=False,
    )
    enforce_eager: bool = flag(
        "Capture no CUDA graphs. This saves some memory, but small batches decode more slowly.",
        _WORKER,
        default=False,
    )
    max_seq_len_to_capture: int | None = flag(
        "Maximum length in tokens of the sequences that run in CUDA graphs. Default: no limit.",
        _WORKER,
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    cpu_offload_gb: float = flag(
        "GiB of weights that stay in host memory and are copied to the GPU when they are needed, "
        "for a model larger than the GPU's memory. Every step then waits for these copies.",
        _WORKER,
        default=0.0,
        parse=float,
        metavar="GIB",
    )
    num_threads: int | None = flag(
        "CPU threads that compute the model. Default: one for each core.",
        _WORKER,
        default=None,
        parse=int,
        metavar="THREADS",
    )
    block_size: int = flag(
        "Tokens in a block of the KV cache. Smaller blocks waste less memory and share prefixes "
        "more finely. 8 is available on GPUs only.",
        _WORKER,
        default=16,
        parse=int,
        choices=(8, 16, 32),
    )
    kv_cache_dtype: str = flag(
        "Number format of the KV cache. auto is the model's own format. int8 (CPU) and fp8 (GPU) "
        "hold about twice as many tokens in the same memory as bfloat16.",
        _WORKER,
        default="auto",
        choices=("auto", "float32", "bfloat16", "int8", "fp8", "fp8_e4m3"),
    )
    num_gpu_blocks_override: int | None = flag(
        "Number of KV cache blocks on the device that runs the model, also on a CPU. Default: as "
        "many as memory allows.",
        _WORKER,
        default=None,
        parse=int,
        metavar="BLOCKS",
    )
    max_logprobs: int = flag(
        "Maximum number of log probabilities that a request may ask for at each position.",
        _WORKER,
        default=20,
        parse=int,
        metavar="NUMBER",
    )

    def __post_init__(self) -> None:
        LicenseArgs.__post_init__(self)
        for name in ("served_model_name", "ignore_patterns"):
            texts = getattr(self, name)
            texts = (texts,) if isinstance(texts, str) else tuple(texts)
            object.__setattr__(self, name, texts)
        if not self.model:
            raise ConfigurationError("no model is given")
        for name in (
            "max_model_len",
            "num_gpu_blocks_override",
            "num_threads",
            "max_seq_len_to_capture",
        ):
            check_at_least(name, getattr(self, name), 1)
        for name in ("max_logprobs", "seed"):
            check_at_least(name, getattr(self, name), 0)
        if self.rope_theta is not None and not self.rope_theta > 0:
            raise ConfigurationError(f"rope_theta must be positive, got {self.rope_theta}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigurationError(
                "gpu_memory_utilization must be above 0 and at most 1, got "
                f"{self.gpu_memory_utilization}"
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigurationError(
                f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}"
            )
        if not 0 <= self.cpu_offload_gb < math.inf:
            raise ConfigurationError(
                f"cpu_offload_gb must be a number from 0 on, got {self.cpu_offload_gb}"
            )
        for item in flag_fields(type(self)):
            choices, value = item.metadata["flag"].choices, getattr(self, item.name)
            if choices is not None and value is not item.default and value not in choices:
                raise ConfigurationError(f"{item.name}={not_a_choice(value, choices)}")
        if self.block_size not in _CPU_BLOCK_SIZES and runs_on_cpu(self.device):
            shown = not_a_choice(self.block_size, _CPU_BLOCK_SIZES)
            raise ConfigurationError(f"on a CPU block_size={shown}")
        if self.skip_tokenizer_init and self.tokenizer is not None:
            raise ConfigurationError("tokenizer and skip_tokenizer_init contradict each other")

    def model_config(self) -> ModelConfig:
        """The model as gateway and worker see it; the names of bundled models become directories.

        Raises:
            ConfigurationError: the model is a directory without config.json.
        """
        return ModelConfig(
            model=locate_model(self.model),
            served_model_names=self.served_model_name or (self.model,),
            tokenizer=None if self.tokenizer is None else locate_model(self.tokenizer, "tokenizer"),
            tokenizer_mode=self.tokenizer_mode,
            skip_tokenizer_init=self.skip_tokenizer_init,
            revision=self.revision,
            tokenizer_revision=self.tokenizer_revision,
            download_dir=self.download_dir,
            ignore_patterns=self.ignore_patterns,
            load_format=self.load_format,
            dtype=self.dtype,
            quantization=self.quantization,
            max_model_len=self.max_model_len,
            rope_scaling=self.rope_scaling,
            rope_theta=self.rope_theta,
            seed=self.seed,
        )

    def worker_config(
        self, scheduler: str = "", name: str = "worker-0", num_local_workers: int = 1
    ) -> WorkerConfig:
        """The configuration of one of `num_local_workers` workers of a machine.

        Raises:
            ConfigurationError: the model is a directory without config.json.
        """
        has_own_size = {"swap_space", "cpu_prefill_memory_utilization"} & self.given
        return WorkerConfig(
            model=self.model_config(),
            scheduler=scheduler,
            name=name,
            device=self.device,
            block_size=self.block_size,
            kv_cache_dtype=self.kv_cache_dtype,
            num_blocks=self.num_gpu_blocks_override,
            max_num_seqs=self.max_num_seqs,
            max_logprobs=self.max_logprobs,
            num_threads=self.num_threads,
            max_num_batched_tokens=self.max_num_batched_tokens,
            attention_backend=self.attention_backend,
            gpu_memory_utilization=self.gpu_memory_utilization,
            enforce_eager=self.enforce_eager,
            max_seq_len_to_capture=self.max_seq_len_to_capture,
            cpu_offload_gb=self.cpu_offload_gb,
            conservative_dry_run=self.conservative_dry_run,
            given_gpu_options=tuple(name for name in _GPU_ONLY if name in self.given),
            speculation=self.speculation_config(),
            host_kv_bytes=self.host_kv_bytes(num_local_workers),
            host_kv_may_shrink=not has_own_size,
            num_local_workers=num_local_workers,
            kv_disk_path=self.kv_disk_path,
            kv_disk_bytes=self.kv_disk_bytes(),
            lazy_loads=not self.apc_offload_not_lazy,
            license=self.license_config(),
        )

    def drafter_config(self, scheduler: str = "") -> DrafterConfig | None:
        """Of the draft worker that runs beside the worker; None: there is no draft model.

        Raises:
            ConfigurationError: the draft model cannot be found.
        """
        model = self.draft_model()
        if model is None:
            return None
        return DrafterConfig(
            model=ModelConfig(
                model=model,
                download_dir=self.download_dir,
                load_format="auto",
                quantization=self.speculative_model_quantization,
                seed=self.seed,
            ),
            scheduler=scheduler,
            backend=self.draft_backend,
            num_threads=self.num_threads,
            max_num_seqs=self.max_num_seqs,
        )


# vLLM's name of the arguments of `AsyncLLMEngine`.
AsyncEngineArgs = EngineArgs
