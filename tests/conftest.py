"""Settings of the whole test suite."""

import os

from hypothesis import HealthCheck, settings

# One thread a process: tests run many small tensors, and the machine has two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=100, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("long", max_examples=5000, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("TACO_HYPOTHESIS_PROFILE", "ci"))
