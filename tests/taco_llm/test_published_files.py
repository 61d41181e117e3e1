"""Checkpoints with the files as published for models whose tokenizers are code there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.architectures.variants import VARIANTS
from support.tokenizer_models import byte_pair_ranks, sentencepiece_model, tiktoken_file
from taco_llm import LLM, SamplingParams
from taco_llm.cli.main import main

pytestmark = [pytest.mark.kernels, pytest.mark.process, pytest.mark.slow]

PROMPT = "The quick brown fox, 日本語 12345 I'll"
LENGTH, NUM_TOKENS = 128, 8


@dataclass(frozen=True)
class Published:
    """A variant and the files of its tokenizer.

    Attributes:
        vocab_size: of the tokenizer; the config repeats it. None: the variant's.
        prefix: the tokens in front of a text.
    """

    variant: str
    tokenizer_class: str
    file: str
    content: bytes
    vocab_size: int | None
    prefix: tuple[str, ...] = ()
    size_field: str = "vocab_size"


def _published() -> list[Published]:
    pieces, ranks = sentencepiece_model(), byte_pair_ranks()
    num_pieces, tiktoken = 430, tiktoken_file(ranks)
    model = "tokenizer.model"
    padded = {"size_field": "padded_vocab_size"}
    chatglm, glm4 = ("[gMASK]", "sop"), ("[gMASK]", "<sop>")
    return [
        Published("internlm-7b-like", "InternLMTokenizer", model, pieces, num_pieces, ("<s>",)),
        Published("internlm2-like", "InternLM2Tokenizer", model, pieces, num_pieces, ("<s>",)),
        Published("xverse-like", "LlamaTokenizer", model, pieces, num_pieces, ("<s>",)),
        Published("qwen-7b-like", "QWenTokenizer", "qwen.tiktoken", tiktoken, len(ranks) + 208),
        Published("baichuan-7b-like", "BaiChuanTokenizer", model, pieces, num_pieces),
        Published("baichuan-13b-like", "BaichuanTokenizer", model, pieces, num_pieces),
        Published("baichuan2-7b-like", "BaichuanTokenizer", model, pieces, None),
        Published("baichuan2-13b-like", "BaichuanTokenizer", model, pieces, None),
        Published(
            "phi-3-small-8k-like", "Phi3SmallTokenizer", "cl100k_base.tiktoken", tiktoken, 100_352
        ),
        Published("chatglm3-6b-like", "ChatGLMTokenizer", model, pieces, 480, chatglm, **padded),
        Published(
            "glm-4-9b-chat-like",
            "ChatGLM4Tokenizer",
            model,
            tiktoken,
            len(ranks) + 14,
            glm4,
            **padded,
        ),
    ]


@pytest.fixture(params=_published(), ids=lambda published: published.variant)
def published(request: pytest.FixtureRequest) -> Published:
    one: Published = request.param
    return one


def _write(published: Published, path: Path) -> Path:
    sizes: dict[str, Any] = (
        {} if published.vocab_size is None else {published.size_field: published.vocab_size}
    )
    VARIANTS[published.variant].make(path, **sizes)
    for file in path.glob("tokenizer*"):
        file.unlink()
    (path / published.file).write_bytes(published.content)
    settings: dict[str, Any] = {"tokenizer_class": published.tokenizer_class}
    if published.tokenizer_class.lower() == "baichuantokenizer":
        settings["add_bos_token"] = False
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def test_a_published_checkpoint_generates_what_its_oracle_does(
    published: Published, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variant, path = VARIANTS[published.variant], _write(published, tmp_path / "model")
    assert main(["plan", str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{variant.architecture}: ")
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(
        str(path), max_model_len=LENGTH, num_gpu_blocks_override=64, num_threads=1, max_num_seqs=4
    ) as llm:
        (output,) = llm.generate(PROMPT, greedy, use_tqdm=False)
        tokenizer = llm.get_tokenizer()
    prompt = output.prompt_token_ids
    front = [tokenizer.convert_tokens_to_ids(token) for token in published.prefix]
    assert prompt[: len(front)] == front
    assert tokenizer.decode(prompt[len(front) :]) == PROMPT
    oracle = variant.reference(path, max_model_len=LENGTH)
    assert output.outputs[0].token_ids == oracle.greedy(prompt, NUM_TOKENS)
