"""Loading tokenizers from model directories, compared with transformers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from support.tiny_tokenizers import byte_fallback_bpe, byte_level_bpe
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer, SlowTokenizer, Tokenizer
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError

pytestmark = pytest.mark.process

TEXTS = ["", "The quick brown fox", "  two  spaces\n", "é🦊 <|im_start|>x<|im_end|>", "<s>a</s>"]


def write(
    path: Path, backend: tokenizers.Tokenizer, special_tokens_map: object = None, **settings: object
) -> Path:
    path.mkdir(exist_ok=True)
    backend.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if special_tokens_map is not None:
        (path / "special_tokens_map.json").write_text(json.dumps(special_tokens_map))
    return path


def load(path: Path, **config: object) -> Tokenizer:
    tokenizer = load_tokenizer(ModelConfig(model=str(path), **config))  # type: ignore[arg-type]
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("backend", [byte_level_bpe(), byte_fallback_bpe()], ids=["level", "fall"])
def test_ids_and_text_are_those_of_transformers(
    tmp_path: Path, backend: tokenizers.Tokenizer
) -> None:
    from transformers import AutoTokenizer

    path = write(tmp_path, backend, clean_up_tokenization_spaces=False)
    ours, theirs = load(path), AutoTokenizer.from_pretrained(path)
    for text in TEXTS:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special)
            assert ours.decode(ids, skip_special_tokens=special) == theirs.decode(
                ids, skip_special_tokens=special
            )


def test_special_tokens_are_named_in_any_of_the_files(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        byte_level_bpe(),
        special_tokens_map={"eos_token": {"content": "<|im_end|>", "lstrip": False}},
        bos_token="<|endoftext|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<think>"],
    )
    tokenizer = load(path)
    settings = tokenizer.settings
    assert (settings.bos_token, settings.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert {"<|pad|>", "<think>", "<|im_start|>"} <= tokenizer.special_tokens.keys()
    ids = tokenizer.encode("a<think>b")
    assert tokenizer.decode(ids) == "ab"


@pytest.mark.parametrize(
    ("flags", "front", "back"),
    [
        ({}, False, False),
        ({"add_bos_token": True}, True, False),
        ({"add_bos_token": True, "add_eos_token": True}, True, True),
        ({"add_bos_token": False}, False, False),
    ],
)
def test_the_flags_for_bos_and_eos_are_obeyed(
    tmp_path: Path, flags: dict[str, bool], front: bool, back: bool
) -> None:
    path = write(
        tmp_path, byte_level_bpe(), bos_token="<|im_start|>", eos_token="<|im_end|>", **flags
    )
    tokenizer = load(path)
    plain = tokenizer.encode("fox", add_special_tokens=False)
    bos, eos = tokenizer.special_tokens["<|im_start|>"], tokenizer.special_tokens["<|im_end|>"]
    assert tokenizer.encode("fox") == [bos] * front + plain + [eos] * back
    assert tokenizer.prefix_token_ids() == [bos] * front


def test_bos_of_tokenizer_json_can_be_switched_off(tmp_path: Path) -> None:
    path = write(tmp_path, byte_fallback_bpe(), bos_token="<s>", eos_token="</s>")
    assert len(load(path).prefix_token_ids()) == 1
    path = write(
        tmp_path, byte_fallback_bpe(), bos_token="<s>", eos_token="</s>", add_bos_token=False
    )
    assert load(path).prefix_token_ids() == []


def test_the_chat_template_may_be_in_several_files(tmp_path: Path) -> None:
    path = write(tmp_path, byte_level_bpe())
    assert load(path).settings.chat_template is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    write(path, byte_level_bpe(), chat_template=named)
    assert load(path).settings.chat_template == "D"
    assert load(path).settings.tool_template == "T"
    write(path, byte_level_bpe(), chat_template="A")
    assert load(path).settings.chat_template == "A"
    assert load(path).settings.tool_template is None
    (path / "chat_template.json").write_text('{"chat_template": "B"}')
    assert load(path).settings.chat_template == "B"
    (path / "chat_template.jinja").write_text("C")
    assert load(path).settings.chat_template == "C"
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("E")
    assert load(path).settings.chat_template == "C"
    assert load(path).settings.tool_template == "E"


def test_vocabulary_and_merges_are_enough(tmp_path: Path) -> None:
    """Like facebook/opt-125m, without tokenizer.json."""
    byte_level_bpe().model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "opt"}')
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_bos_token": True,
        "bos_token": "<|im_end|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|im_end|>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load(tmp_path)
    assert isinstance(tokenizer, FastTokenizer)
    ids = tokenizer.encode("The quick brown 🦊")
    assert ids[0] == tokenizer.special_tokens["<|im_end|>"]
    assert tokenizer.decode(ids) == "The quick brown 🦊"
    assert tokenizer.detokenizer().feed(ids) == "The quick brown 🦊"


def test_slow_mode_gives_the_same_text(tmp_path: Path) -> None:
    path = write(tmp_path, byte_level_bpe(), clean_up_tokenization_spaces=False)
    slow, fast = load(path, tokenizer_mode="slow"), load(path)
    for text in TEXTS:
        assert slow.decode(slow.encode(text)) == fast.decode(fast.encode(text))


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    backend = byte_level_bpe()
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    tokenizer = load(write(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("The quick brown fox")) == "The quick brown fox"


def test_skip_tokenizer_init_loads_no_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(ModelConfig(model=str(tmp_path), skip_tokenizer_init=True)) is None


def test_a_missing_tokenizer_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    for model in (str(tmp_path / "nowhere"), str(tmp_path / "broken"), "no/such-model", "a b"):
        with pytest.raises(ConfigurationError) as raised:
            load_tokenizer(ModelConfig(model=model))
        assert "\n" not in str(raised.value)


def test_a_directory_without_a_tokenizer_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer").mkdir()
    program = (
        "import sys\n"
        "sys.modules['transformers'] = None\n"
        "from taco_gateway.text.tokenizer.loading import load_tokenizer\n"
        "from taco_proto.config import ModelConfig\n"
        f"load_tokenizer(ModelConfig(model={str(tmp_path)!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert f"ConfigurationError: there is no tokenizer in {tmp_path}: name one" in last


def test_neither_torch_nor_transformers_is_imported(tmp_path: Path) -> None:
    path = write(tmp_path, byte_level_bpe())
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from taco_gateway import server\n"
        "from taco_gateway.text.tokenizer.loading import load_tokenizer\n"
        "from taco_proto.config import ModelConfig\n"
        f"print(load_tokenizer(ModelConfig(model={str(path)!r})).vocab_size)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_tokenizer_that_transformers_runs_in_python(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    tokenizer = load(tmp_path, tokenizer_mode="slow")
    assert isinstance(tokenizer, SlowTokenizer)
    eos = tokenizer.special_tokens["</s>"]
    text = "a fox é🦊"
    ids = tokenizer.encode(text)
    assert ids[-1] == eos
    assert tokenizer.decode(ids) == text
    detokenizer = tokenizer.detokenizer()
    assert "".join([detokenizer.feed([i]) for i in ids]) + detokenizer.flush() == text
    assert tokenizer.encode_parts(["a</s>", eos]).count(eos) == 1
