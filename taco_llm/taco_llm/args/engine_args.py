"""The engine's arguments: model, tokenizer, device, memory and KV cache."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from taco_llm.args import lora_modules
from taco_llm.args.compatibility import takes_compatibility_arguments
from taco_llm.args.device_args import GPU_ONLY, DeviceArgs
from taco_llm.args.flags import GATEWAY, WORKER, flag, flag_fields, json_object, not_a_choice
from taco_llm.args.kv_tier_args import KVTierArgs
from taco_llm.args.license_args import LicenseArgs
from taco_llm.args.model_location import locate_adapter, locate_model
from taco_llm.args.scheduler_args import SchedulerArgs, check_at_least
from taco_llm.args.speculation_args import SpeculationArgs
from taco_proto.config import DrafterConfig, ModelConfig, WorkerConfig
from taco_proto.errors import ArgumentError
from taco_worker.devices.gpu_presence import runs_on_cpu
from taco_worker.quant.registry import quantization_names

_MODEL = (GATEWAY, WORKER)
_TEXT = (GATEWAY,)
_WORKER = (WORKER,)


_DEVICE_GROUP = "device and its memory"
_KV_GROUP = "KV cache"

_CPU_BLOCK_SIZES = (16, 32)


def _flag_groups() -> dict[str, str]:
    """Help group by field name; the group of all other fields is "model"."""
    groups: dict[str, str] = {}
    for table, title in (
        (DeviceArgs, _DEVICE_GROUP),
        (LicenseArgs, "license"),
        (KVTierArgs, _KV_GROUP),
        (SpeculationArgs, "speculative decoding"),
        (SchedulerArgs, "scheduling"),
    ):
        groups |= dict.fromkeys((item.name for item in flag_fields(table)), title)
    cache = ("block_size", "kv_cache_dtype", "quantization_param_path", "enable_prefix_caching")
    groups |= dict.fromkeys((*cache, "num_gpu_blocks_override"), _KV_GROUP)
    return groups | {name: _KV_GROUP for name in groups if name.startswith("apc_offload")}


@takes_compatibility_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs(DeviceArgs):
    """Arguments of the engine, for `LLM`, `AsyncLLMEngine` and the command line.

    The help of its flag describes each argument: see `taco_llm serve --help=all`. None means the
    default of every argument. The constructor also accepts the arguments of vLLM that TACO does not
    have; see `compatibility`.

    Attributes:
        given: the names of the arguments that the caller set.

    Raises:
        ConfigurationError: a value is out of range, two values contradict each other, or a value
            asks for a missing feature.
    """

    NONE_IS_DEFAULT: ClassVar[bool] = True
    FLAG_GROUPS: ClassVar[Mapping[str, str]] = _flag_groups()
    GROUP_ORDER: ClassVar[tuple[str, ...]] = (
        *("model", _DEVICE_GROUP, _KV_GROUP),
        *("scheduling", "speculative decoding", "license"),
    )

    given: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)

    model: str = flag(
        "Model to serve: a directory with config.json and weights, a .gguf file, a Hugging Face "
        "hub id such as facebook/opt-125m, REPOSITORY:Q4_K_M for .gguf files of the hub, or the "
        "name of a bundled model such as demo.",
        _MODEL,
    )
    served_model_name: tuple[str, ...] = flag(
        "Names that clients may use in the model field of requests. Responses contain the first "
        "name. Default: MODEL as given.",
        _MODEL,
        default=(),
        several="extend",
        metavar="NAME",
    )
    tokenizer: str | None = flag(
        "Directory or hub id of the tokenizer. Default: the tokenizer of MODEL.",
        _TEXT,
        default=None,
        metavar="MODEL",
    )
    tokenizer_mode: str = flag(
        "Tokenizer files and library: auto reads tokenizer.json, or converts tokenizer.model, "
        "*.tiktoken or tekken.json, for the fast tokenizers library; slow always uses "
        "transformers; mistral reads only tekken.json or tokenizer.model. Use slow if the two "
        "libraries give different tokens.",
        _TEXT,
        default="auto",
        choices=("auto", "slow", "mistral"),
        is_advanced=True,
    )
    skip_tokenizer_init: bool = flag(
        "Do not load a tokenizer. Requests must then contain token ids, and answers contain token "
        "ids only.",
        _TEXT,
        default=False,
        is_advanced=True,
    )
    revision: str | None = flag(
        "Branch, tag or commit of the model on the Hugging Face hub. Default: the default branch.",
        _MODEL,
        default=None,
    )
    tokenizer_revision: str | None = flag(
        "Branch, tag or commit of --tokenizer on the Hugging Face hub. Default: the default "
        "branch.",
        _TEXT,
        default=None,
        metavar="REVISION",
        is_advanced=True,
    )
    ignore_patterns: tuple[str, ...] = flag(
        "Patterns of files that are not downloaded from the hub, such as 'original/**/*'. Folders "
        "and consolidated copies of the weights are never downloaded.",
        _WORKER,
        default=(),
        several="extend",
        metavar="PATTERN",
        is_advanced=True,
    )
    load_format: str = flag(
        "Format of the weight files: auto takes what taco_llm convert wrote, else safetensors, "
        "else .bin files; pt loads only .bin files; npcache (or np-cache) keeps their tensors as "
        "NumPy files beside them; safetensors loads only safetensors; mistral loads "
        "consolidated*.safetensors with Mistral's names; gguf loads .gguf files; sharded_state "
        "maps what taco_llm convert wrote; tensorizer reads model.tensors, which CoreWeave's "
        "tensorizer wrote; "
        "bitsandbytes means --quantization bitsandbytes; dummy makes random weights for profiling.",
        _WORKER,
        default="auto",
        choices=(
            *("auto", "pt", "safetensors", "npcache", "np-cache", "mistral", "sharded_state"),
            *("gguf", "tensorizer", "bitsandbytes", "dummy"),
        ),
    )
    model_loader_extra_config: Mapping[str, Any] | None = flag(
        "Options of --load-format as a JSON object. tensorizer reads model.tensors in MODEL, or "
        'another file: \'{"tensorizer_uri": "/models/llama.tensors"}\'. Default: none.',
        _WORKER,
        default=None,
        parse=json_object,
        metavar="JSON",
        is_advanced=True,
    )
    merge_lora: str | None = flag(
        "LoRA adapter in PEFT's format to merge into the weights at the start: a directory or a "
        "hub id with adapter_config.json. MODEL is its base model, unquantized. Default: none.",
        _WORKER,
        default=None,
        metavar="ADAPTER",
    )
    lora_modules: tuple[str, ...] = flag(
        "LoRA adapters in PEFT's format that requests may name in their model field, as NAME=PATH: "
        "a directory or a hub id with adapter_config.json. MODEL is their base model, which may be "
        "quantized. Default: none.",
        _WORKER,
        default=(),
        several="extend",
        metavar="NAME=PATH",
    )
    dtype: str = flag(
        "Number format of weights and activations. auto uses the format in the checkpoint's "
        "config.json, and on a CPU bfloat16 in place of float16; half is float16 and float is "
        "float32. A CPU computes an explicit float16 in float32.",
        _WORKER,
        default="auto",
        choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
    )
    quantization: str | None = flag(
        "Quantization of the weights. int8 stores those of any checkpoint in 8 bits with one scale "
        "per output, and rounds activations to 8 bits: half the memory of bfloat16, and faster "
        "decoding. bitsandbytes makes nf4 of an unquantized checkpoint; experts_int8 makes int8 of "
        "its experts alone. tpu_int8 and neuron_quant mean int8. The name of a checkpoint's own "
        "method is accepted and changes nothing. Default: the checkpoint's own.",
        _WORKER,
        default=None,
        choices=quantization_names(),
        short="-q",
    )
    quantized_activations: str = flag(
        "Number format of activations in products with the 4-bit and 8-bit integer weights of a "
        "quantized checkpoint, on a CPU. auto uses int8 for weights in groups of a multiple of 16 "
        "columns (with AMX: of 64, and without minima), and bfloat16 for others; int8 fails where "
        "a matrix has others. bfloat16 is slower, and more exact where channels have outliers.",
        _WORKER,
        default="auto",
        choices=("auto", "int8", "bfloat16"),
    )
    quantize_lm_head: bool = flag(
        "Store the LM head in 8 bits on a CPU where the checkpoint has it in 16 or 32: half of its "
        "memory, which each token reads. --quantization int8 does so too.",
        _WORKER,
        default=False,
    )
    max_model_len: int | None = flag(
        "Maximum tokens of a sequence, prompt and answer together. Default: the limit in the "
        "model's config.json. Lower it if the KV cache does not fit into memory.",
        _WORKER,
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    disable_sliding_window: bool = flag(
        "Limit sequences to the model's sliding window, so that every token attends to all tokens "
        "before it. It has no effect on models without a window.",
        _WORKER,
        default=False,
        is_advanced=True,
    )
    config_format: str = flag(
        "Format of the model's configuration: hf reads config.json, mistral reads params.json, "
        "auto reads the one that exists and prefers config.json.",
        _MODEL,
        default="auto",
        choices=("auto", "hf", "mistral"),
        is_advanced=True,
    )
    hf_overrides: Mapping[str, Any] | None = flag(
        "Fields that replace those of the model's config.json, as a JSON object, for example "
        "'{\"rope_theta\": 1000000}'. Objects inside it are merged field by field. Default: none.",
        _MODEL,
        default=None,
        parse=json_object,
        metavar="JSON",
        is_advanced=True,
    )
    rope_scaling: Mapping[str, Any] | None = flag(
        "Rotary position scaling as a JSON object, for example "
        '\'{"rope_type": "linear", "factor": 2.0}\'. Default: the value in config.json.',
        _WORKER,
        default=None,
        parse=json_object,
        metavar="JSON",
        is_advanced=True,
    )
    rope_theta: float | None = flag(
        "Base of the rotary position frequencies. Default: the value in config.json.",
        _WORKER,
        default=None,
        parse=float,
        metavar="BASE",
        is_advanced=True,
    )
    seed: int = flag(
        "Seed of offline requests without a seed, and of the random weights of --load-format "
        "dummy.",
        _WORKER,
        default=0,
        parse=int,
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
        "Number format of the KV cache. auto is fp8 if the quantized checkpoint was made for it, "
        "else the format of the weights (--dtype). int8 and fp8 (fp8_e4m3) hold about twice as "
        "many tokens as bfloat16 in the same memory. fp8_e5m2 is less precise.",
        _WORKER,
        default="auto",
        choices=("auto", "float32", "bfloat16", "int8", "fp8", "fp8_e4m3", "fp8_e5m2"),
    )
    quantization_param_path: str | None = flag(
        "JSON file with the scaling factors of an fp8 KV cache, one per layer, as vLLM reads it. "
        "No effect with another --kv-cache-dtype. Default: the checkpoint's scales, else one per "
        "token and head.",
        _WORKER,
        default=None,
        metavar="FILE",
        is_advanced=True,
    )
    num_gpu_blocks_override: int | None = flag(
        "Number of KV cache blocks on the device that runs the model, GPU or CPU. Default: as "
        "many as memory allows.",
        _WORKER,
        default=None,
        parse=int,
        metavar="BLOCKS",
        is_advanced=True,
    )
    max_logprobs: int = flag(
        "Maximum log probabilities per position that a request may ask for; -1: all tokens of the "
        "vocabulary. See docs/serving.md before you raise it far.",
        _WORKER,
        default=20,
        parse=int,
        metavar="NUMBER",
        is_advanced=True,
    )
    logits_processors: tuple[str | type, ...] = flag(
        "Logits processors to load, as MODULE:CLASS. The worker imports the modules, so they must "
        "be on its PYTHONPATH. See docs/logits-processors.md. Default: none.",
        _WORKER,
        default=(),
        several="extend",
        metavar="MODULE:CLASS",
        is_advanced=True,
    )

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer", "speculative_model"):
            if isinstance(getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(getattr(self, name)))
        # A torch.dtype, told by its name: importing torch takes seconds.
        if str(self.dtype).startswith("torch."):
            object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        DeviceArgs.__post_init__(self)
        for name in ("served_model_name", "ignore_patterns", "logits_processors"):
            texts = getattr(self, name)
            texts = (texts,) if isinstance(texts, str | type) else tuple(texts)
            object.__setattr__(self, name, texts)
        object.__setattr__(self, "lora_modules", lora_modules.as_texts(self.lora_modules))
        self._check_adapters()
        if not isinstance(self.model, str):
            raise ArgumentError(f"model must be a string, got {self.model!r}")
        if not self.model:
            raise ArgumentError(
                "model is empty: give a directory, a hub id or a bundled model such as demo"
            )
        for name in ("max_model_len", "num_gpu_blocks_override"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("seed", self.seed, 0)
        check_at_least("max_logprobs", self.max_logprobs, -1)
        for name in ("hf_overrides", "rope_scaling", "model_loader_extra_config"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise ArgumentError(f"{name} must be a dict (a JSON object), got {value!r}")
        if self.rope_theta is not None and not self.rope_theta > 0:
            raise ArgumentError(f"rope_theta must be positive, got {self.rope_theta}")
        for item in flag_fields(type(self)):
            choices, value = item.metadata["flag"].choices, getattr(self, item.name)
            if choices is not None and value is not item.default and value not in choices:
                raise ArgumentError(f"{item.name}={not_a_choice(value, choices)}")
        if self.block_size not in _CPU_BLOCK_SIZES and runs_on_cpu(self.device):
            shown = not_a_choice(self.block_size, _CPU_BLOCK_SIZES)
            raise ArgumentError(f"on a CPU block_size={shown}")
        if self.load_format == "bitsandbytes" and self.quantization not in (None, "bitsandbytes"):
            raise ArgumentError(
                f"load_format=bitsandbytes and quantization={self.quantization} contradict each "
                "other: give one of them"
            )
        if self.skip_tokenizer_init and self.tokenizer is not None:
            raise ArgumentError(
                "tokenizer and skip_tokenizer_init contradict each other: give one of them"
            )

    def _check_adapters(self) -> None:
        if self.lora_modules and self.merge_lora is not None:
            raise ArgumentError(
                "lora_modules and merge_lora contradict each other: adapters belong to the model "
                "as it was trained"
            )
        for name in self.adapters:
            if name in (self.served_model_name or (self.model,)):
                raise ArgumentError(
                    f"lora_modules has the name of the model, {name!r:.100}: give the adapter or "
                    "the model (served_model_name) another name"
                )

    @property
    def adapters(self) -> dict[str, str]:
        """The paths or hub ids of the adapters of `lora_modules`, by name."""
        return dict(map(lora_modules.split, self.lora_modules))

    def with_updates(self, **changes: Any) -> Self:
        """A copy with other values of some arguments, which then count as given.

        `dataclasses.replace` would count all arguments as given.
        """
        return type(self)(**{**{name: getattr(self, name) for name in self.given}, **changes})

    def model_config(self) -> ModelConfig:
        """The model's configuration, the same for gateway and worker.

        The name of a bundled model becomes its directory.

        Raises:
            ConfigurationError: the model is a directory without config.json.
        """
        return ModelConfig(
            model=locate_model(
                self.model,
                revision=self.revision,
                download_dir=self.download_dir,
                load_format=self.load_format,
            ),
            served_model_names=self.served_model_name or (self.model,),
            tokenizer=None if self.tokenizer is None else locate_model(self.tokenizer, "tokenizer"),
            tokenizer_mode=self.tokenizer_mode,
            skip_tokenizer_init=self.skip_tokenizer_init,
            revision=self.revision,
            tokenizer_revision=self.tokenizer_revision,
            download_dir=self.download_dir,
            ignore_patterns=self.ignore_patterns,
            load_format=self.load_format,
            model_loader_extra_config=self.model_loader_extra_config,
            merge_lora=None if self.merge_lora is None else locate_adapter(self.merge_lora),
            lora_modules=tuple(
                (name, locate_adapter(path)) for name, path in self.adapters.items()
            ),
            dtype=self.dtype,
            quantization=(
                "bitsandbytes" if self.load_format == "bitsandbytes" else self.quantization
            ),
            quantized_activations=self.quantized_activations,
            quantize_lm_head=self.quantize_lm_head,
            max_model_len=self.max_model_len,
            disable_sliding_window=self.disable_sliding_window,
            config_format=self.config_format,
            hf_overrides=self.hf_overrides,
            rope_scaling=self.rope_scaling,
            rope_theta=self.rope_theta,
            seed=self.seed,
        )

    def worker_config(
        self, scheduler: str = "", name: str = "worker-0", num_local_workers: int = 1
    ) -> WorkerConfig:
        """The configuration of one worker; the machine runs `num_local_workers` of them.

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
            quantization_param_path=self.quantization_param_path,
            num_blocks=self.num_gpu_blocks_override,
            max_num_seqs=self.max_num_seqs,
            max_logprobs=self.max_logprobs,
            enable_prefix_caching=self.enable_prefix_caching,
            num_threads=self.num_threads,
            max_num_batched_tokens=self.max_num_batched_tokens,
            attention_backend=self.attention_backend,
            gpu_memory_utilization=self.gpu_memory_utilization,
            enforce_eager=self.enforce_eager,
            max_seq_len_to_capture=self.max_seq_len_to_capture,
            cpu_offload_gb=self.cpu_offload_gb,
            conservative_dry_run=self.conservative_dry_run,
            given_gpu_options=tuple(name for name in GPU_ONLY if name in self.given),
            speculation=self.speculation_config(),
            max_forced_tokens=self.max_forced_tokens,
            host_kv_bytes=self.host_kv_bytes(num_local_workers),
            host_kv_may_shrink=not has_own_size,
            num_local_workers=num_local_workers,
            kv_disk_path=self.kv_disk_path,
            kv_disk_bytes=self.kv_disk_bytes(),
            lazy_loads=self.apc_offload_lazy,
            license=self.license_config(),
            logits_processors=self.logits_processors,
        )

    def drafter_config(self, scheduler: str = "") -> DrafterConfig | None:
        """The configuration of the draft worker beside the worker; None without a draft model.

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
                quantization=self.speculative_model_quantization,
                seed=self.seed,
            ),
            scheduler=scheduler,
            backend=self.draft_backend,
            num_threads=self.num_threads,
            max_num_seqs=self.max_num_seqs,
        )


# vLLM's name for the arguments of `AsyncLLMEngine`.
AsyncEngineArgs = EngineArgs
