"""A small tokenizer in Hugging Face's format; it needs no torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS_TOKEN = "<|bos|>"
EOS_TOKEN = "<|eos|>"
END_OF_TURN_TOKEN = "<|end|>"
SPECIAL_TOKENS = (BOS_TOKEN, EOS_TOKEN, END_OF_TURN_TOKEN)
BOS_TOKEN_ID, EOS_TOKEN_ID, END_OF_TURN_TOKEN_ID = range(len(SPECIAL_TOKENS))

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}<|end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

_CORPUS = (
    "The quick brown fox jumps over the lazy dog while the other dogs are watching.",
    "def hello(name: str) -> str:\n    return f'Hello, {name}! How are you today?'\n",
    "for index, value in enumerate(values):\n    print(index, value)\n",
    "Serving a model means that many requests share the same forward pass.",
)
_TOKENIZER_VOCAB_SIZE = 384


def trained_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer with the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_TOKENIZER_VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def save_tokenizer(
    path: Path,
    *,
    chat_template: str | None = CHAT_TEMPLATE,
    add_bos: bool = False,
    added: Sequence[str] = (),
) -> int:
    """Write a byte-level BPE tokenizer (any text round-trips) and return its vocabulary's size.

    Args:
        added: further tokens, which are recognized as a whole.
    """
    tokenizer = trained_tokenizer()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS_TOKEN} $A",
            pair=f"{BOS_TOKEN} $A {BOS_TOKEN} $B",
            special_tokens=[(BOS_TOKEN, BOS_TOKEN_ID)],
        )
    tokenizer.save(str(path / "tokenizer.json"))

    tokenizer_config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS_TOKEN,
        "eos_token": EOS_TOKEN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    if chat_template is not None:
        tokenizer_config["chat_template"] = chat_template
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))
    return int(tokenizer.get_vocab_size())
