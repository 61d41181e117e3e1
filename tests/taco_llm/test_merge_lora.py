"""`merge_lora` and --merge-lora, from the argument to the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from support.checkpoints import make_checkpoint
from taco_llm import LLM, SamplingParams
from taco_llm.cli.main import main
from taco_proto.errors import ConfigurationError

PROMPT, NUM_TOKENS = [5, 9, 11, 17], 24


def test_tokens_are_those_of_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_checkpoint(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(1)
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.2)
    adapted.save_pretrained(str(tmp_path / "adapter"))
    ids = torch.tensor([PROMPT])
    options = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS, "do_sample": False}
    expected = adapted.generate(input_ids=ids, **options)[0, len(PROMPT) :].tolist()

    monkeypatch.chdir(tmp_path)
    sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    found = []
    for adapter in ("adapter", None):
        llm = LLM(str(base), dtype="float32", merge_lora=adapter)
        (output,) = llm.generate({"prompt_token_ids": PROMPT}, sampling)
        found.append(list(output.outputs[0].token_ids))
    assert found[0] == expected
    assert found[1] != expected


def test_an_adapter_that_does_not_fit_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = make_checkpoint(tmp_path / "base")
    assert main(["serve", str(base), "--merge-lora", str(base)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"taco_llm serve: error: {base} is no LoRA adapter: it has no adapter_config.json\n"
    )
    with pytest.raises(ConfigurationError, match="is no LoRA adapter"):
        LLM(str(base), merge_lora=str(base))
