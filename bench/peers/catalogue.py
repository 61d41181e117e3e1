"""The engines that can be compared, and how each is started.

`directory` below is filled by `install.sh`: `models/NAME` with a checkpoint, `-gptq` and `-awq`
with its quantized forms, `-packed` with what `taco_llm convert` writes and `-lora` with adapters,
`models-ov/NAME-fp16`, `-int8` and `-int4` with OpenVINO's conversions, `models-gguf/NAME.gguf` and
`-q4_0` and others with llama.cpp's, its build `llama.cpp`, and the environments `vllm` and `ov`.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.checkpoint_size import BLOCK_SIZE, longest_sequence, num_blocks
from bench.peers.driver import Settings
from bench.peers.engine_process import ROOT, EngineSpec
from bench.peers.workloads import NUM_ADAPTERS
from taco_kernels.library import KernelLibraryError, load_library

MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 64
KV_GIB = 4
SERVED_NAME = "m"
# llama.cpp allocates its whole KV cache at the start.
LLAMA_MAX_CONTEXT = 32768
# Variants of a checkpoint: folders of `models`, and files of `models-gguf`.
QUANTIZED, GGUF = ("gptq", "awq"), ("q8_0", "q4_0", "q4_k_m")
PACKED = "packed"  # for this CPU: peers start from conversions too
# Bits of a weight as an engine's variant stores it; those of a checkpoint are 16.
WEIGHT_BITS = {"int8": 8, "q8_0": 8, "fp32": 32} | dict.fromkeys(
    ("gptq", "awq", "q4_0", "q4_k_m", "int4"), 4
)
NAMES = (
    "taco",
    "taco-int8",
    "taco-lora",
    "taco-int8-lora",
    *(f"taco-{variant}" for variant in (*QUANTIZED, *GGUF, PACKED)),
    "taco-http",
    "taco-int8-http",
    "vllm",
    "vllm-fp32",
    "vllm-lora",
    "vllm-http",
    *(f"vllm-{variant}{way}" for variant in QUANTIZED for way in ("", "-w4a8")),
    "llama-cpp",
    *(f"llama-cpp-{variant}" for variant in GGUF),
    "openvino",
    "openvino-fp32",
    "openvino-int8",
    "openvino-int4",
    "transformers",
)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Attributes:
    directory: what `install.sh` filled.
    model: a folder of `directory/models`.
    """

    directory: Path
    model: str
    threads: int

    @property
    def checkpoint(self) -> Path:
        return self.directory / "models" / self.model

    @property
    def max_model_len(self) -> int:
        return min(MAX_MODEL_LEN, longest_sequence(self.checkpoint))

    def find(self, name: str, *, prefix_cache: bool) -> EngineSpec:
        """Returns how to start an engine. Raises `ValueError` for a name that is not in `NAMES`."""
        family, *variants = name.split("-")
        if name not in NAMES:
            raise ValueError(f"{name!r} is no engine: give one of {', '.join(NAMES)}")
        make = {
            "taco": self._taco,
            "vllm": self._vllm,
            "llama": self._llama_cpp,
            "openvino": self._openvino,
            "transformers": self._transformers,
        }[family]
        return make(name, set(variants), prefix_cache)

    def _taco(self, name: str, variants: set[str], prefix_cache: bool) -> EngineSpec:
        int8 = "int8" in variants
        options: dict[str, Any] = {
            "num_gpu_blocks_override": num_blocks(self.checkpoint, KV_GIB),
            "quantization": "int8" if int8 else None,
            # OpenVINO and llama.cpp store it in 8 bits too.
            "quantize_lm_head": bool(variants & set(QUANTIZED)),
        }
        if "lora" in variants:
            options["lora_modules"] = {path: path for path in self._adapters()}
        driver = "drive_taco"
        model = self._gguf(variants) if variants & set(GGUF) else self._form(variants)
        if "http" in variants:
            _require_kernels()
            driver = "drive_http"
            flags = ["--quantization", "int8"] if int8 else []
            options = self._served(self._taco_command(prefix_cache) + flags, "taco-llm serve")
        python = Path(sys.executable)
        return self._spec(
            name,
            python,
            driver,
            options,
            prefix_cache,
            variants,
            model=model,
            environment=_own_packages(),
        )

    def _adapters(self) -> list[str]:
        directory = self.checkpoint.with_name(f"{self.model}-lora")
        return [str(directory / str(index)) for index in range(NUM_ADAPTERS)]

    def _form(self, variants: set[str]) -> Path:
        """The checkpoint in the form of the variants."""
        found = [variant for variant in (*QUANTIZED, PACKED) if variant in variants]
        return self.directory / "models" / "-".join([self.model, *found])

    def _gguf(self, variants: set[str]) -> Path:
        found = [variant for variant in GGUF if variant in variants]
        return self.directory / "models-gguf" / f"{'-'.join([self.model, *found])}.gguf"

    def _taco_command(self, prefix_cache: bool) -> list[str]:
        return [
            *(sys.executable, "-m", "taco_llm.cli.main", "serve", str(self.checkpoint)),
            *("--host", "127.0.0.1", "--port", "{port}", "--served-model-name", SERVED_NAME),
            *("--num-threads", str(self.threads), "--max-model-len", str(self.max_model_len)),
            *("--max-num-seqs", str(MAX_NUM_SEQS), "--block-size", str(BLOCK_SIZE)),
            *("--num-gpu-blocks-override", str(num_blocks(self.checkpoint, KV_GIB))),
            "--enable-prefix-caching" if prefix_cache else "--no-enable-prefix-caching",
            "--disable-log-requests",
        ]

    def _vllm(self, name: str, variants: set[str], prefix_cache: bool) -> EngineSpec:
        python = self.directory / "vllm" / "bin" / "python"
        dtype = "float32" if "fp32" in variants else "bfloat16"
        driver = "drive_vllm"
        options: dict[str, Any] = {"dtype": dtype}
        if "lora" in variants:
            options["adapters"] = self._adapters()
        if "http" in variants:
            caching = "--enable-prefix-caching" if prefix_cache else "--no-enable-prefix-caching"
            command = [
                # vLLM's console script fails, because the CPU build's wheel has another name.
                *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
                *("--model", str(self.checkpoint), "--served-model-name", SERVED_NAME),
                *("--dtype", dtype, "--max-model-len", str(self.max_model_len)),
                *("--max-num-seqs", str(MAX_NUM_SEQS), "--port", "{port}", caching),
            ]
            driver, options = "drive_http", self._served(command, "vllm serve")
        environment = self._vllm_environment()
        if variants & set(QUANTIZED):
            environment["VLLM_CPU_INT4_W4A8"] = str(int("w4a8" in variants))
        return self._spec(
            name,
            python,
            driver,
            options,
            prefix_cache,
            variants,
            model=self._form(variants),
            environment=environment,
        )

    def _vllm_environment(self) -> dict[str, str]:
        preloaded = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
        preloaded.append(self.directory / "vllm" / "lib" / "libiomp5.so")
        return {
            "LD_PRELOAD": ":".join(map(str, preloaded)),
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{self.threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "HF_HUB_OFFLINE": "1",
        }

    def _llama_cpp(self, name: str, variants: set[str], prefix_cache: bool) -> EngineSpec:
        # A slot holds one sequence; all slots share the KV cache of --ctx-size tokens.
        num_tokens = min(num_blocks(self.checkpoint, KV_GIB) * BLOCK_SIZE, LLAMA_MAX_CONTEXT)
        command = [
            str(self.directory / "llama.cpp" / "bin" / "llama-server"),
            *("--model", str(self._gguf(variants)), "--host", "127.0.0.1", "--port", "{port}"),
            *("--threads", str(self.threads), "--parallel", str(MAX_NUM_SEQS), "--kv-unified"),
            *("--ctx-size", str(num_tokens), "--log-disable", "--no-webui"),
            "--cache-prompt" if prefix_cache else "--no-cache-prompt",
        ]
        options = self._served(command, "llama.cpp", schema_field="json_schema")
        return self._spec(name, Path(sys.executable), "drive_http", options, prefix_cache, variants)

    def _openvino(self, name: str, variants: set[str], prefix_cache: bool) -> EngineSpec:
        stored = next((one for one in ("int8", "int4") if one in variants), "fp16")
        precision = "f32" if stored != "fp16" or "fp32" in variants else "bf16"
        return self._spec(
            name,
            self.directory / "ov" / "bin" / "python",
            "drive_openvino",
            {"INFERENCE_PRECISION_HINT": precision},
            prefix_cache,
            variants,
            model=self.directory / "models-ov" / f"{self.model}-{stored}",
        )

    def _transformers(self, name: str, variants: set[str], prefix_cache: bool) -> EngineSpec:
        python = Path(sys.executable)
        return self._spec(name, python, "drive_transformers", {}, prefix_cache, variants)

    def _served(
        self, command: list[str], version: str, schema_field: str = "structured_outputs"
    ) -> dict[str, Any]:
        return {
            "command": command,
            "model": SERVED_NAME,
            "version": version,
            "schema_field": schema_field,
        }

    def _spec(
        self,
        name: str,
        python: Path,
        driver: str,
        options: dict[str, Any],
        prefix_cache: bool,
        variants: set[str],
        *,
        environment: dict[str, str] | None = None,
        model: Path | None = None,
    ) -> EngineSpec:
        settings = Settings(
            model=str(model or self.checkpoint),
            threads=self.threads,
            prefix_cache=prefix_cache,
            max_model_len=self.max_model_len,
            max_num_seqs=MAX_NUM_SEQS,
            kv_gib=KV_GIB,
            options=options,
        )
        return EngineSpec(
            name=name,
            python=python,
            driver=driver,
            settings=settings,
            environment=environment or {},
            weight_bits=next(
                (bits for variant, bits in WEIGHT_BITS.items() if variant in variants), 16
            ),
        )


def _require_kernels() -> None:
    """A server without kernels would only warn. Raises `ValueError`."""
    try:
        load_library()
    except KernelLibraryError as error:
        raise ValueError(f"TACO's CPU kernels cannot be used: {error}") from None


def _own_packages() -> dict[str, str]:
    """Lets an engine import TACO from where this process does, such as another checkout."""
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join((str(ROOT), path))} if path else {}
