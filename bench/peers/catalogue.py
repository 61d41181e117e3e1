"""The engines that can be compared, and how each is started.

`directory` below is filled by `install.sh`: `models/NAME` with a checkpoint,
`models-ov/NAME-fp16` and `-int8` with OpenVINO's conversions, `models-gguf/NAME.gguf` with
llama.cpp's, its build `llama.cpp`, and the environments `vllm` and `ov`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.checkpoint_size import BLOCK_SIZE, longest_sequence, num_blocks
from bench.peers.driver import Settings
from bench.peers.engine_process import EngineSpec

MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 64
KV_GIB = 4
SERVED_NAME = "m"
# llama.cpp allocates its whole KV cache at the start.
LLAMA_MAX_CONTEXT = 32768
NAMES = (
    "taco",
    "taco-int8",
    "taco-http",
    "taco-int8-http",
    "vllm",
    "vllm-fp32",
    "vllm-http",
    "llama-cpp",
    "openvino",
    "openvino-fp32",
    "openvino-int8",
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
        options: dict[str, Any] = {"quantization": "int8"} if int8 else {}
        driver = "drive_taco"
        if "http" in variants:
            driver = "drive_http"
            flags = ["--quantization", "int8"] if int8 else []
            options = self._served(self._taco_command(prefix_cache) + flags, "taco-llm serve")
        return self._spec(
            name, Path(sys.executable), driver, options, prefix_cache, weight_bits=8 if int8 else 16
        )

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
        driver, options = "drive_vllm", {"dtype": dtype}
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
        return self._spec(
            name,
            python,
            driver,
            options,
            prefix_cache,
            weight_bits=32 if "fp32" in variants else 16,
            environment=self._vllm_environment(),
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
        gguf = self.directory / "models-gguf" / f"{self.model}.gguf"
        command = [
            str(self.directory / "llama.cpp" / "bin" / "llama-server"),
            *("--model", str(gguf), "--host", "127.0.0.1", "--port", "{port}"),
            *("--threads", str(self.threads), "--parallel", str(MAX_NUM_SEQS), "--kv-unified"),
            *("--ctx-size", str(num_tokens), "--log-disable", "--no-webui"),
            "--cache-prompt" if prefix_cache else "--no-cache-prompt",
        ]
        options = self._served(command, "llama.cpp", schema_field="json_schema")
        python = Path(sys.executable)
        return self._spec(name, python, "drive_http", options, prefix_cache, weight_bits=16)

    def _openvino(self, name: str, variants: set[str], prefix_cache: bool) -> EngineSpec:
        int8 = "int8" in variants
        precision = "f32" if int8 or "fp32" in variants else "bf16"
        return self._spec(
            name,
            self.directory / "ov" / "bin" / "python",
            "drive_openvino",
            {"INFERENCE_PRECISION_HINT": precision},
            prefix_cache,
            weight_bits=8 if int8 else 16,
            model=self.directory / "models-ov" / f"{self.model}-{'int8' if int8 else 'fp16'}",
        )

    def _transformers(self, name: str, variants: set[str], prefix_cache: bool) -> EngineSpec:
        python = Path(sys.executable)
        return self._spec(name, python, "drive_transformers", {}, prefix_cache, weight_bits=16)

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
        *,
        weight_bits: int,
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
            weight_bits=weight_bits,
        )
