"""Checkpoints without tokenizer.json, loaded as the gateway does."""

import json
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken

from support.tokenizer_models import byte_pair_ranks, sentencepiece_model, tiktoken_file
from taco_common.tokenizer_files.published_patterns import CL100K, KIMI, QWEN
from taco_gateway.text.tokenizer import converted
from taco_gateway.text.tokenizer.loading import load_tokenizer, load_transformers_tokenizer
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError

pytestmark = pytest.mark.process

TEXT = "The quick brown fox, 日本語 12345 I'll"


def write(directory: Path, name: str, content: bytes, **settings: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(content)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def load(directory: Path, mode: str = "auto") -> Tokenizer:
    tokenizer = load_tokenizer(ModelConfig(model=str(directory), tokenizer_mode=mode))
    assert tokenizer is not None
    return tokenizer


def processor(content: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=content)


def encoding(pattern: str, special: dict[str, int]) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "test", pat_str=pattern, mergeable_ranks=byte_pair_ranks(), special_tokens=special
    )


def test_llama_adds_bos_and_needs_no_code(tmp_path: Path) -> None:
    content = sentencepiece_model()
    plain = processor(content).encode(TEXT)
    tokenizer = load(write(tmp_path, "tokenizer.model", content, tokenizer_class="LlamaTokenizer"))
    assert tokenizer.encode(TEXT) == [1, *plain]
    assert (tokenizer.settings.bos_token, tokenizer.settings.eos_token) == ("<s>", "</s>")
    assert tokenizer.decode([1, *plain, 2]) == TEXT
    assert tokenizer.encode_parts([1, "a</s>"]) == [1, *processor(content).encode("a</s>")]


def test_baichuan_adds_no_bos(tmp_path: Path) -> None:
    content = sentencepiece_model()
    settings = {"tokenizer_class": "BaichuanTokenizer", "add_bos_token": False}
    tokenizer = load(write(tmp_path, "tokenizer.model", content, **settings))
    assert tokenizer.encode(TEXT) == processor(content).encode(TEXT)


def test_internlm2_names_unused_pieces(tmp_path: Path) -> None:
    content = sentencepiece_model(user_defined_symbols=["[UNUSED_TOKEN_145]"])
    unused = processor(content).piece_to_id("[UNUSED_TOKEN_145]")
    added = {str(unused): {"content": "<|im_start|>", "special": True}}
    directory = write(
        tmp_path,
        "tokenizer.model",
        content,
        tokenizer_class="InternLM2Tokenizer",
        added_tokens_decoder=added,
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer = load(directory)
    assert tokenizer.special_tokens["<|im_start|>"] == unused
    expected = [1, unused, *processor(content).encode("user\n")]
    assert tokenizer.encode("<|im_start|>user\n") == expected


def test_chatglm_puts_gmask_and_sop_in_front(tmp_path: Path) -> None:
    content = sentencepiece_model()
    directory = write(tmp_path, "tokenizer.model", content, tokenizer_class="ChatGLMTokenizer")
    tokenizer, theirs = load(directory), processor(content)
    size = theirs.get_piece_size()
    names = {"[MASK]": 0, "[gMASK]": 1, "[sMASK]": 2, "sop": 3, "<|system|>": 5, "<|user|>": 6}
    for name, offset in names.items():
        assert tokenizer.special_tokens[name] == size + offset
    assert tokenizer.encode("a soprano") == [size + 1, size + 3, *theirs.encode("a soprano")]
    assert tokenizer.settings.eos_token == "</s>"
    user = size + 6
    message = tokenizer.encode_parts([size + 1, size + 3, user, "hi <|user|> sop"])
    assert message == [size + 1, size + 3, user, *theirs.encode("hi <|user|> sop")]


def test_qwen_knows_chatml(tmp_path: Path) -> None:
    ranks = byte_pair_ranks()
    file = tiktoken_file(ranks)
    tokenizer = load(write(tmp_path, "qwen.tiktoken", file, tokenizer_class="QWenTokenizer"))
    special = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<|extra_204|>": 207}
    special = {text: len(ranks) + offset for text, offset in special.items()}
    for text, token_id in special.items():
        assert tokenizer.special_tokens[text] == token_id
    theirs = encoding(QWEN, special)
    for text in (TEXT, "<|im_start|>user\nhi<|im_end|>\n<|extra_204|>", "e\u0301", ""):
        composed = unicodedata.normalize("NFC", text)
        assert tokenizer.encode(text) == theirs.encode(composed, allowed_special="all")
    assert tokenizer.vocab_size == len(ranks) + 208


def test_phi3_small_pads_cl100k(tmp_path: Path) -> None:
    file = tiktoken_file(byte_pair_ranks())
    directory = write(tmp_path, "cl100k_base.tiktoken", file, tokenizer_class="Phi3SmallTokenizer")
    tokenizer = load(directory)
    ids = {"<|endoftext|>": 100257, "<|user|>": 100262, "<|end|>": 100266, "<|dummy_id_2|>": 100256}
    ids |= {"<|endofprompt|>": 100276, "<|dummy_id_12|>": 100277, "<|dummy_id_86|>": 100351}
    assert {text: tokenizer.special_tokens[text] for text in ids} == ids
    assert len(set(tokenizer.special_tokens.values())) == 100352 - 100256
    text = f"<|user|>{TEXT}<|end|>"
    assert tokenizer.encode(text) == encoding(CL100K, ids).encode(text, allowed_special="all")


def test_kimi_reserves_tokens(tmp_path: Path) -> None:
    ranks = byte_pair_ranks()
    named = {"[BOS]": len(ranks), "[EOS]": len(ranks) + 1, "<|im_user|>": len(ranks) + 3}
    directory = write(
        tmp_path,
        "tiktoken.model",
        tiktoken_file(ranks),
        tokenizer_class="TikTokenTokenizer",
        added_tokens_decoder={str(i): {"content": t, "special": True} for t, i in named.items()},
    )
    tokenizer = load(directory)
    assert named.items() <= tokenizer.special_tokens.items()
    reserved = f"<|reserved_token_{len(ranks) + 2}|>"
    assert tokenizer.special_tokens[reserved] == len(ranks) + 2
    text = f"<|im_user|>{TEXT}"
    assert tokenizer.encode(text) == encoding(KIMI, named).encode(text, allowed_special="all")
    assert tokenizer.settings.eos_token == "[EOS]"


def test_glm4_and_llama3_have_tiktoken_files_with_another_name(tmp_path: Path) -> None:
    ranks = byte_pair_ranks()
    file, size = tiktoken_file(ranks), len(ranks)
    glm = load(write(tmp_path / "g", "tokenizer.model", file, tokenizer_class="ChatGLM4Tokenizer"))
    plain = encoding(CL100K, {}).encode(TEXT)
    assert glm.encode(TEXT) == [size + 2, size + 4, *plain]
    assert glm.special_tokens["<|observation|>"] == size + 9
    llama = load(write(tmp_path / "l", "tokenizer.model", file))
    assert llama.encode(TEXT) == [size, *plain]
    assert llama.special_tokens["<|eot_id|>"] == size + 9
    assert len(llama.special_tokens) == 256


@pytest.mark.parametrize("name", ["tokenizer.model.v3", "tokenizer.model"])
def test_mistral_mode_prefers_its_own_files(tmp_path: Path, name: str) -> None:
    content = sentencepiece_model(control_symbols=["[INST]", "[/INST]"])
    directory = write(tmp_path, name, content)
    (directory / "tokenizer.json").write_text("not read")
    tokenizer, theirs = load(directory, "mistral"), processor(content)
    inst, end = theirs.piece_to_id(["[INST]", "[/INST]"])
    expected = [1, inst, *theirs.encode(TEXT), end]
    assert tokenizer.encode(f"[INST]{TEXT}[/INST]") == expected


def test_mistral_mode_without_files_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"mistral needs tekken\.json or .* in "):
        load(tmp_path, "mistral")


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("tokenizer.model", b"\x00garbage", {}, "is not a SentencePiece model"),
        ("x.tiktoken", tiktoken_file(byte_pair_ranks()), {}, "its pattern is unknown"),
        (
            "qwen.tiktoken",
            tiktoken_file(byte_pair_ranks()),
            {"added_tokens_decoder": {"3": {"content": "<|x|>"}}},
            "has the id of another token",
        ),
        (
            "tokenizer.model",
            sentencepiece_model(),
            {"added_tokens_decoder": {"many": {"content": "<|x|>"}}},
            "an added token has the id 'many'",
        ),
        (
            "tokenizer.model",
            sentencepiece_model(),
            {"added_tokens_decoder": {"900": {"content": "▁the"}}},
            "has the ids",
        ),
        ("tekken.json", b"{}", {}, "it is not a tekken.json"),
        ("tekken.json", b"[", {}, "is not valid JSON"),
    ],
)
def test_files_that_cannot_be_converted_give_one_line(
    tmp_path: Path, name: str, content: bytes, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        load(write(tmp_path, name, content, **settings))
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(f"cannot convert the tokenizer {tmp_path / name}: ")


def test_a_conversion_that_takes_too_long_gives_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write(tmp_path, "tokenizer.model", sentencepiece_model())
    monkeypatch.setattr(converted, "_WALL_SECONDS", 1e-3)
    with pytest.raises(ConfigurationError, match="it needs too much time or memory"):
        load(directory)


def test_a_conversion_ends_at_its_limit_of_cpu_time(tmp_path: Path) -> None:
    directory = write(tmp_path, "tokenizer.model", sentencepiece_model())
    request = {"file": str(directory / "tokenizer.model"), "settings": {}, "ids": {}}
    program = (
        "from taco_gateway.text.tokenizer import conversion_process as process\n"
        "process.MAX_CPU_SECONDS = 1e-5\n"
        "while True:\n"
        f"    process.answer([{json.dumps(request).encode()!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGPROF  # of the interval timer


def test_programs_get_a_tokenizer_of_transformers(tmp_path: Path) -> None:
    content = sentencepiece_model()
    directory = write(tmp_path, "tokenizer.model", content, tokenizer_class="InternLMTokenizer")
    loaded = load_transformers_tokenizer(ModelConfig(model=str(directory)))
    assert loaded.encode(TEXT) == [1, *processor(content).encode(TEXT)]
    assert loaded.eos_token == "</s>"


def test_neither_torch_nor_transformers_is_imported(tmp_path: Path) -> None:
    directory = write(tmp_path, "tokenizer.model", sentencepiece_model())
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "sys.modules['sentencepiece'] = sys.modules['tiktoken'] = None\n"
        "from taco_gateway.text.tokenizer.loading import load_tokenizer\n"
        "from taco_proto.config import ModelConfig\n"
        f"print(load_tokenizer(ModelConfig(model={str(directory)!r})).vocab_size)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
