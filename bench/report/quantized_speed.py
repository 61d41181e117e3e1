"""Makes the table of how fast quantized models are, from the results `peers_quantized`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.record import read_best
from bench.report.wrapping import wrapped

_ENGINES: Mapping[str, tuple[str, str]] = {
    "taco-int8": ("TACO", "`--quantization int8`"),
    "taco-gptq": ("TACO", "GPTQ, 4 bits, groups of 128; `--quantize-lm-head`"),
    "taco-q8_0": ("TACO", "GGUF Q8_0"),
    "taco-q4_k_m": ("TACO", "GGUF Q4_K_M"),
    "llama-cpp-q8_0": ("llama.cpp", "GGUF Q8_0"),
    "llama-cpp-q4_k_m": ("llama.cpp", "GGUF Q4_K_M"),
    "openvino-int8": ("OpenVINO", "int8"),
    "openvino-int4": ("OpenVINO", "int4"),
    "vllm-gptq": ("vLLM", "GPTQ, 4 bits, groups of 128"),
    "vllm-gptq-w4a8": ("vLLM", "the same with `VLLM_CPU_INT4_W4A8=1`"),
}


def quantized_speed_table(results: Path) -> Iterator[str]:
    """Yields each engine and format: one stream, medians, then how they were measured."""
    record = read_best(results, "peers_quantized")
    figures, machine = record["figures"], record["machine"]
    prompt = figures["workloads"]["long"]["figures"]["ttft_ms"]["medians"]
    token = figures["workloads"]["single"]["figures"]["tpot_ms"]["medians"]
    yield "| engine | format | 1,024 tokens to the first token, ms | ms a token |"
    yield "|---|---|---|---|"
    for name in figures["engines"]:
        engine, format_ = _ENGINES[name]
        yield f"| {engine} | {format_} | {prompt[name]:,.0f} | {token[name]:.1f} |"
    yield ""
    yield from wrapped(
        "- ",
        f"{record['date']}, {machine['cpu']} with {machine['cores']} cores "
        f"({machine['vector_sets'][-1]}), the shape of {figures['model']}, {figures['pairs']} "
        "rounds in turns; intervals and the rest are in [Benchmarks](benchmarks.md)",
    )
