"""The machine as results describe it."""

import pytest

from taco_llm.bench.environment import cpu_name


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name"),
    [
        ("AuthenticAMD", 25, 1, "AMD EPYC (Zen 3)"),
        ("AuthenticAMD", 25, 17, "AMD EPYC (Zen 4)"),
        ("AuthenticAMD", 26, 2, "AMD EPYC (Zen 5)"),
        ("AuthenticAMD", 23, 49, "AMD EPYC"),
        ("GenuineIntel", 25, 17, "AMD EPYC"),
    ],
)
def test_the_generation_of_a_cpu(vendor: str, family: int, model: int, name: str) -> None:
    described = {
        "vendor_id": vendor,
        "cpu family": str(family),
        "model": str(model),
        "model name": "AMD EPYC",
    }
    assert cpu_name(described) == name


def test_a_cpu_that_says_nothing() -> None:
    assert cpu_name({}) == "unknown"
