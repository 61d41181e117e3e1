import json
from pathlib import Path
from typing import Any

import pytest

from bench.peers.comparison import record_of
from bench.report import tables as result_tables
from bench.report.quality import formats_quality_table
from bench.report.quantized_speed import quantized_speed_table
from bench.report.tables import RESULTS, changed_pages, describe, peers_table, with_tables


def test_the_tables_of_the_pages_match_the_results() -> None:
    """Else: python -m bench.report.tables."""
    assert [page for page, _ in changed_pages(RESULTS)] == []


def test_each_page_has_its_tables() -> None:
    for page, tables in result_tables.PAGES.items():
        text = (result_tables.ROOT / page).read_text()
        for name in tables:
            assert f"<!-- table: {name} -->" in text


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The record of one run."""
    values = {"taco": [38.0, 38.0, 38.0], "vllm": [53.0, 53.0, 53.0], "openvino": [45.0, 46, 44]}
    record: dict[str, Any] = {
        "date": "2026-11-21",
        "machine": {"cpu": "AMD EPYC", "cores": 2, "vector_sets": ["avx2", "avx512f"]},
        "figures": {
            "model": "qwen2-0.5b",
            "threads": 2,
            "pairs": 3,
            "engines": {name: {"weight_bits": 16} for name in values},
            "workloads": {
                "single": {
                    "shape": "1x128/128",
                    "figures": {"tpot_ms": record_of(values, ["taco"])},
                }
            },
        },
    }
    (tmp_path / "peers_bf16.avx512.json").write_text(json.dumps(record))
    return tmp_path


def test_the_speed_of_quantized_models(tmp_path: Path) -> None:
    values = {"taco-int8": [20.0, 21.0, 22.0], "openvino-int8": [31.0, 32.0, 33.0]}
    workloads = {
        "single": {"shape": "1x128/128", "figures": {"tpot_ms": record_of(values, ["taco-int8"])}},
        "long": {"shape": "1x1024/16", "figures": {"ttft_ms": record_of(values, ["taco-int8"])}},
    }
    record = {
        "date": "2026-11-23",
        "machine": {"cpu": "a CPU", "cores": 2, "vector_sets": ["avx2", "avx512_bf16"]},
        "figures": {
            "model": "qwen2-0.5b",
            "pairs": 3,
            "engines": {name: {"weight_bits": 8} for name in values},
            "workloads": workloads,
        },
    }
    (tmp_path / "peers_quantized.avx2.json").write_text(json.dumps(record))
    lines = list(quantized_speed_table(tmp_path))
    assert lines[2:4] == [
        "| TACO | `--quantization int8` | 21 | 21.0 |",
        "| OpenVINO | int8 | 32 | 32.0 |",
    ]
    assert lines[-2].startswith("- 2026-11-23, a CPU with 2 cores (avx512_bf16), the shape of")


def test_a_row_of_a_run(results: Path) -> None:
    lines = list(peers_table(results))
    assert lines[0] == "### AVX-512"
    assert lines[4] == (
        "| qwen2-0.5b | 1 stream, 128 in / 128 out | TPOT, ms | taco | 38.0 "
        "| 45.0 (openvino, best of 2) "
        "| 0.84 (0.80–0.89) | ≤ 0.85 | met | 1 |"
    )
    assert lines[-1] == (
        "1. 2026-11-21, AMD EPYC with 2 threads of 2 cores, qwen2-0.5b, 3 pairs; "
        "peers: vllm, openvino."
    )


def test_one_peer_is_not_called_the_best(results: Path) -> None:
    [path] = results.glob("*.json")
    record = json.loads(path.read_text())
    figures = record["figures"]
    del figures["engines"]["vllm"]
    figures["workloads"]["single"]["figures"]["tpot_ms"]["medians"].pop("vllm")
    path.write_text(json.dumps(record))
    lines = list(peers_table(results))
    assert "| 45.0 (openvino) |" in lines[4]
    assert lines[-1].endswith("peers: openvino.")


def test_only_text_between_the_marks_is_replaced(results: Path) -> None:
    page = "before\n<!-- table: peers -->\nold\n<!-- end of table -->\nafter | cells |\n"
    written = with_tables(page, results)
    assert written.startswith("before\n<!-- table: peers -->\n\n### AVX-512\n\n| model |")
    assert written.endswith("\n\n<!-- end of table -->\nafter | cells |\n")
    assert "old" not in written
    assert with_tables(written, results) == written


def test_an_unknown_table_is_an_error(results: Path) -> None:
    with pytest.raises(KeyError):
        with_tables("<!-- table: nothing -->\n<!-- end of table -->", results)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("1x1024/16", "1 stream, 1,024 in / 16 out"),
        ("64x16-512/16-256", "64 requests, 16–512 in / 16–256 out"),
        ("32x512+32/32", "32 requests, 512 of 544 in shared / 32 out"),
        ("json:32x128/64", "32 requests, 128 in / 64 of JSON out"),
        ("lora:32x128/64", "32 requests, 128 in / 64 out, of LoRA adapters"),
    ],
)
def test_shapes_in_words(shape: str, words: str) -> None:
    assert describe(shape) == words


def test_integer_operations_are_no_floating_point_operations(tmp_path: Path) -> None:
    loops = ("avx2_fp32", "avx2_int8", "avx512_bf16", "avx512_vnni", "amx_int8")
    rate = {"one_thread": 1.0, "all_threads": 2.0}
    figures = {"threads": 2, "read_gb_per_s": rate, "peak_gops": dict.fromkeys(loops, rate)}
    record = {"machine": {"cpu": "a CPU"}, "figures": figures}
    (tmp_path / "roofline.amx.json").write_text(json.dumps(record))
    _, _, *lines = result_tables.roofline_table(tmp_path)
    assert [line.split(" | ")[1] for line in lines] == [
        "memory read, GB/s",
        "AVX2 FP32, GFLOP/s",
        "AVX2 INT8, GOP/s",
        "AVX512 BF16, GFLOP/s",
        "AVX512 VNNI, GOP/s",
        "AMX INT8, GOP/s",
    ]


def test_what_is_not_served_has_no_tokens_that_differ(tmp_path: Path) -> None:
    rows = [
        {"model": model, "planting": planting, "name": name, "perplexity": perplexity}
        | {"differing": differing}
        for planting, growth in (("none", 1.0), ("compensated", 2.0))
        for model, name, perplexity, differing in (
            ("exact", "GPTQ", 10.2 * growth, 0.0),
            ("engine", "float32", 10.0, 0.0),
            ("engine", "GPTQ, int8 activations", 10.3 * growth, 0.125),
        )
    ]
    (tmp_path / "formats_quality.json").write_text(json.dumps({"figures": {"rows": rows}}))
    assert list(formats_quality_table(tmp_path))[2:] == [
        "| float32 | 10.00 | +0.00% | 0.00% | 10.00 | +0.00% | 0.00% |",
        "| GPTQ, int8 activations | 10.30 | +3.00% | 12.50% | 20.60 | +106.00% | 12.50% |",
        "| GPTQ, exact | 10.20 | +2.00% | – | 20.40 | +104.00% | – |",
    ]
