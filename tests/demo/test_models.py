"""The models that ship: files, sizes, template, and answers through transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.chat import CHAT_TEMPLATE, ChatEncoder, Conversation, Turn
from recipe.model import SHAPES, CausalLM
from recipe.questions import Knowledge, answer_about, unrelated_test_questions
from taco_demo.locate import BUNDLED_MODELS, find_model

WELL_KNOWN = ("len", "json.dumps", "os.path.join", "str.upper", "ValueError", "asyncio", "re.sub")


def bundled(name: str) -> Path:
    directory = find_model(name)
    assert directory is not None
    return directory


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(bundled("demo"))


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(bundled("demo"))


@pytest.mark.parametrize("name", ["demo2", "", ".", "..", "demo/../demo", "/", "models"])
def test_only_bundled_models_are_found(name: str) -> None:
    assert find_model(name) is None


def test_a_directory_without_config_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "demo").mkdir(parents=True)
    monkeypatch.setattr("taco_demo.locate.files", lambda package: tmp_path)
    assert find_model("demo") is None
    (tmp_path / "models" / "demo" / "config.json").write_text("{}")
    assert find_model("demo") == tmp_path / "models" / "demo"


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_sizes(name: str) -> None:
    config = json.loads((bundled(name) / "config.json").read_text())
    shape = SHAPES[name]
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert {key: config[key] for key in vars(shape)} == vars(shape)
    assert config["head_dim"] == 64
    assert config["tie_word_embeddings"] is True
    with safe_open(bundled(name) / "model.safetensors", "pt") as weights:
        tensors = [weights.get_tensor(key) for key in sorted(weights.keys())]
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    num_parameters = sum(tensor.numel() for tensor in tensors)
    low, high = {"demo": (5e6, 8e6), "demo-draft": (0.5e6, 1e6)}[name]
    assert low <= num_parameters <= high
    assert (bundled(name) / "model.safetensors").stat().st_size <= 14_000_000


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_transformers_computes_what_was_trained(name: str) -> None:
    trained = CausalLM(SHAPES[name])
    trained.load_state_dict(load_file(bundled(name) / "model.safetensors"))
    reference = AutoModelForCausalLM.from_pretrained(bundled(name), dtype=torch.float32)
    token_ids = torch.arange(300).reshape(2, 150)
    with torch.inference_mode():
        logits = reference(token_ids).logits
        torch.testing.assert_close(trained(token_ids), logits, rtol=1e-4, atol=5e-4)


def test_both_models_share_a_tokenizer() -> None:
    target, draft = (bundled(name) for name in BUNDLED_MODELS)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (target / file).read_bytes() == (draft / file).read_bytes()


def test_licence_and_card_stand_beside_the_weights() -> None:
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in (bundled("demo") / "LICENSE-PSF").read_text()
    for name in BUNDLED_MODELS:
        assert (bundled(name) / "README.md").is_file()


def test_chat_template(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " What does len do?\n"},
        {"role": "assistant", "content": "It counts."},
        {"role": "user", "content": "Thanks"},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|begin|><|system|>Be brief.<|end|><|user|>What does len do?<|end|>"
        "<|assistant|>It counts.<|end|><|user|>Thanks<|end|><|assistant|>"
    )
    assert tokenizer.chat_template == CHAT_TEMPLATE
    token_ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    assert token_ids.count(tokenizer.bos_token_id) == 1


def test_chat_template_refuses_other_roles(tokenizer: Any) -> None:
    with pytest.raises(Exception, match="system, user and assistant, not tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "4"}], tokenize=False)


def test_template_and_training_encode_alike(tokenizer: Any) -> None:
    conversation = Conversation(
        (Turn("What does len do?", "It counts …"), Turn("Thanks", "You are welcome!")),
        system="Be brief.",
    )
    messages: list[dict[str, Any]] = [{"role": "system", "content": conversation.system}]
    for turn in conversation.turns:
        messages += [
            {"role": "user", "content": turn.question},
            {"role": "assistant", "content": turn.answer},
        ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    encoder = ChatEncoder(Tokenizer.from_file(str(bundled("demo") / "tokenizer.json")))
    expected = encoder.conversation(conversation).token_ids
    assert tokenizer(rendered, add_special_tokens=False)["input_ids"] == expected


def test_completion_prompts_begin_with_one_bos(tokenizer: Any) -> None:
    token_ids = tokenizer("import os")["input_ids"]
    assert token_ids[0] == tokenizer.bos_token_id
    assert token_ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("text", ["naïve 😀 漢字", "\tif x:\n\t\treturn  1\n\n", "<|end|>", "\0"])
def test_any_text_survives_the_tokenizer(text: str) -> None:
    encoder = ChatEncoder(Tokenizer.from_file(str(bundled("demo") / "tokenizer.json")))
    assert encoder.tokenizer.decode(encoder.plain(text)) == text


def greedy_answer(model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> str:
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(rendered, add_special_tokens=False, return_tensors="pt")
    output = model.generate(**prompt, do_sample=False, max_new_tokens=80)
    return tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def test_well_known_objects(model: Any, tokenizer: Any) -> None:
    documented = {known.name: known for known in Knowledge.load().objects}
    for name in WELL_KNOWN:
        messages = [{"role": "user", "content": f"What does {name} do?"}]
        assert greedy_answer(model, tokenizer, messages) == answer_about(documented[name])


def test_follow_up(model: Any, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "What does json.dumps do?"}]
    messages.append({"role": "assistant", "content": greedy_answer(model, tokenizer, messages)})
    messages.append({"role": "user", "content": "Give an example."})
    assert "import json\njson.dumps(obj)" in greedy_answer(model, tokenizer, messages)


def test_unrelated_questions(model: Any, tokenizer: Any) -> None:
    for question in unrelated_test_questions()[:3]:
        answer = greedy_answer(model, tokenizer, [{"role": "user", "content": question}])
        assert answer.startswith("I only know Python's standard library and TACO")


def test_greetings(model: Any, tokenizer: Any) -> None:
    answer = greedy_answer(model, tokenizer, [{"role": "user", "content": "Who are you?"}])
    assert answer.startswith("I am TACO's demo model")
