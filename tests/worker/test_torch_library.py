"""PyTorch's library, linked before the import."""

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from taco_worker import torch_library
from taco_worker.torch_library import link_torch_early

LINKED = """
import sys
from pathlib import Path
from taco_worker.torch_library import link_torch_early

thread = link_torch_early("cpu")
thread.join()
assert "libtorch_cpu.so" in Path("/proc/self/maps").read_text()
assert "torch" not in sys.modules
import torch
print(torch.ones(2).softmax(0).tolist(), link_torch_early("cpu"))
"""


@pytest.mark.slow
def test_the_library_is_linked_before_the_import() -> None:
    run = subprocess.run([sys.executable, "-c", LINKED], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[0.5, 0.5] None\n", "")


def test_a_process_for_a_gpu_links_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert link_torch_early("cuda") is None


@pytest.mark.parametrize("has_torch", [False, True])
def test_what_cannot_be_linked_is_left_to_the_import(
    has_torch: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = ModuleSpec("torch", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]  # it has no libraries
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(torch_library, "find_spec", lambda name: spec if has_torch else None)
    thread = link_torch_early("cpu")
    assert (thread is not None) is has_torch
    if thread is not None:
        thread.join()
