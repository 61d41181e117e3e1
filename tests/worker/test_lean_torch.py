"""torch without the parts that no step on a CPU uses."""

import subprocess
import sys
from importlib import metadata

import pytest

from taco_worker.lean_torch import lean_torch

LEAN = """
import sys
from taco_worker.lean_torch import _UNUSED, lean_torch

with lean_torch("cpu"):
    import torch

def is_lazy(name):
    return type(sys.modules[name]).__name__ == "_LazyModule"

assert torch.ones(2).softmax(0).tolist() == [0.5, 0.5]
assert all(is_lazy(name) for name in _UNUSED), [n for n in _UNUSED if not is_lazy(n)]
"""
# What users' code may need, with what torch gives without laziness.
USES = {
    "optimizer": "print(torch.optim.SGD([torch.ones(1)]).param_groups[0]['lr'])",
    "distribution": "print(torch.distributions.Bernoulli(torch.tensor(0.5)).mean.item())",
    "star": "from torch.testing import *\nassert_close(torch.ones(1), torch.ones(1))\nprint('ok')",
    "submodule": "import torch.nn.quantized.dynamic as d\nprint(d.Linear.__name__)",
    "profiler": "print(torch.profiler.ProfilerActivity.CPU.name)",
    "quantization": "print(torch.quantization.QConfig.__name__, torch.nn.qat.Linear.__name__)",
    "masked": "print(torch.masked.sum(torch.ones(3), mask=torch.ones(3) > 0).item())",
    "export": """
class Twice(torch.nn.Module):
    def forward(self, x):
        return 2 * x

exported = torch.export.export(Twice(), (torch.ones(2),))
print(exported.module()(torch.ones(2)).tolist())
""",
    "compiler": """
import torch._dynamo
assert not any(is_lazy(name) for name in _UNUSED)
print(torch.compile(lambda x: x.cumsum(0) + 1, backend="eager")(torch.ones(2)).tolist())
print(torch.ones(3, 2, device="meta").kthvalue(1).values.shape)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_what_is_left_out_runs_when_it_is_used(use: str) -> None:
    plain = "import torch\nis_lazy = lambda name: False\n_UNUSED = ()\n"
    lean, whole = (
        subprocess.run([sys.executable, "-c", start + USES[use]], capture_output=True, text=True)
        for start in (LEAN, plain)
    )
    assert lean.returncode == 0, lean.stderr
    assert lean.stdout == whole.stdout != ""


def test_other_versions_are_imported_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    finders = [*sys.meta_path]
    monkeypatch.setattr(metadata, "version", lambda name: "2.12.1")
    with lean_torch("cpu"):
        assert sys.meta_path == finders
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0+cpu")
    with lean_torch("cuda"):
        assert sys.meta_path == finders
    with lean_torch("cpu"):
        assert len(sys.meta_path) == len(finders) + 1
    sys.meta_path[:] = finders
