from pathlib import Path

import pytest

from bench.kernels import roofline

FLAGS = {
    "avx2_fp32": "avx2",
    "avx2_int8": "avx2",
    "avx512_fp32": "avx512bw",
    "avx512_bf16": "avx512_bf16",
    "avx512_vnni": "avx512_vnni",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
}


@pytest.mark.slow
def test_the_instruction_sets_of_the_cpu_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "LOOP_SECONDS", 1e-4)
    monkeypatch.setattr(roofline, "REPEATS", 1)
    flags = Path("/proc/cpuinfo").read_text().split()
    measured = roofline.measure(threads=2)
    assert set(measured.peak_gops) == {name for name, flag in FLAGS.items() if flag in flags}
    rates = [measured.read_gb_per_s, *measured.peak_gops.values()]
    assert all(rate["one_thread"] > 0 and rate["all_threads"] > 0 for rate in rates)


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(roofline.CompilerError, match="false failed"):
        roofline.measure(threads=1)
