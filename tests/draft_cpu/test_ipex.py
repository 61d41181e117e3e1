"""The draft model with IPEX; skipped unless it and torch 2.8 are installed."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from support.checkpoints import make_checkpoint
from support.drafting import Ask, draft_request, drafts_of
from support.models import load_step_model
from taco_draft import ipex
from taco_draft.draft_runner import DraftRunner
from taco_proto.config import DrafterConfig, ModelConfig
from taco_proto.errors import ConfigurationError
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.layers.linear import Linear

HAS_IPEX = find_spec("intel_extension_for_pytorch") is not None
PROMPT = [5, 17, 300, 42, 9, 77]


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def config(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> DrafterConfig:
    path = make_checkpoint(
        tmp_path_factory.mktemp("qwen2"),
        "Qwen2ForCausalLM",
        tie_word_embeddings=request.param,
    )
    model = ModelConfig(model=str(path), dtype="float32", quantization="none")
    return DrafterConfig(model=model, backend="ipex", num_threads=1, num_blocks=16)


@pytest.mark.skipif(not HAS_IPEX, reason="intel-extension-for-pytorch is not installed")
def test_it_drafts_what_our_kernels_draft(config: DrafterConfig) -> None:
    request = draft_request(Ask(1, 0, PROMPT, 6), Ask(2, 0, PROMPT[:3], 4))
    ours = DraftRunner(replace(config, backend="kernels"))
    theirs = DraftRunner(config)
    assert drafts_of(theirs.draft(request)) == drafts_of(ours.draft(request))


@pytest.mark.skipif(not HAS_IPEX, reason="intel-extension-for-pytorch is not installed")
def test_weights_of_int8_draft_almost_the_same(config: DrafterConfig) -> None:
    model = replace(config.model, quantization="int8")
    request = draft_request(*(Ask(n, 0, [n, *PROMPT], 1) for n in range(16)))
    exact = drafts_of(DraftRunner(config).draft(request))
    rounded = drafts_of(DraftRunner(replace(config, model=model)).draft(request))
    assert sum(exact[n] == rounded[n] for n in range(16)) >= 12


@pytest.mark.skipif(HAS_IPEX, reason="intel-extension-for-pytorch is installed")
def test_without_the_package_one_line_says_what_to_install(config: DrafterConfig) -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'taco-llm\[ipex\]'"):
        DraftRunner(config)


def test_another_torch_is_named(config: DrafterConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipex, "find_spec", lambda name: object())
    monkeypatch.setattr(torch, "__version__", "2.81.0")
    with pytest.raises(ConfigurationError, match=r"needs torch 2\.8, and this is 2\.81\.0"):
        DraftRunner(config)


def test_an_unknown_backend_is_named(config: DrafterConfig) -> None:
    with pytest.raises(ConfigurationError, match="unknown draft_backend 'openvino'"):
        DraftRunner(replace(config, backend="openvino"))


@torch.inference_mode()
def test_plain_linears_compute_the_same(config: DrafterConfig) -> None:
    model = load_step_model(Path(config.model.model), "torch")
    assert isinstance(model, TorchModel)
    hidden = torch.randn(3, model.plan.hidden_size)
    linears = [one for one in model.network.modules() if isinstance(one, Linear)]
    before = model.network.project(hidden)
    ipex.use_plain_linears(model.network)
    assert not any(isinstance(module, Linear) for module in model.network.modules())
    plain = [one for one in model.network.modules() if isinstance(one, nn.Linear)]
    assert len(plain) == len(linears)
    torch.testing.assert_close(model.network.project(hidden), before)
