"""Converts the vocabulary in a GGUF file's metadata to the content of a tokenizer.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from taco_common.tokenizer_files.added_tokens import AddedToken
from taco_common.tokenizer_files.model_proto import (
    ModelType,
    Piece,
    PieceType,
    SentencePieceModel,
)
from taco_common.tokenizer_files.pre_tokenizers import find_pre_tokenizer
from taco_common.tokenizer_files.sentencepiece import tokenizer_json as pieces_json

_PREFIX = "tokenizer.ggml."
_NO_VOCABULARY = (None, "none", "no_vocab")
_MODELS = ("gpt2", "llama", "t5")
_OTHER_MODELS = {"bert": "bert (WordPiece)", "rwkv": "rwkv (a trie)"}
# Special tokens of files that do not name them.
_DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}
# Tokens that end a model's turn, whatever the file says of them.
_ENDS_OF_TURN = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>"),
    *("<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>", "<eos>"),
    *("<｜end▁of▁sentence｜>", "<end_of_utterance>", "[EOT]", "[EOS]"),
)
# In a vocabulary with both, "<|end|>" only ends a part of a turn (gpt-oss).
_ENDS_OF_HARMONY, _END_OF_PART = ("<|return|>", "<|call|>"), "<|end|>"
_NAMED_TOKENS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "mask_token": "mask",
}
_MARKED_RSTRIP = ("<unk>", "<s>", "<|endoftext|>")  # tokens of Phi-3 that leave spaces alone


class GgmlVocabulary:
    """The keys `tokenizer.*` of a GGUF file.

    Attributes:
        tokens: texts by id.

    Raises:
        ValueError: a key is missing or invalid, or names something that is not supported.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._model = self._get("model")
        if self._model not in (*_MODELS, *_NO_VOCABULARY):
            name = _OTHER_MODELS.get(self._model or "", repr(self._model))
            raise ValueError(
                f"the tokenizer {name:.100} is not supported; known: {', '.join(_MODELS)}"
            )
        self.tokens: Sequence[str] = self._list("tokens", str, [])
        types = self._list("token_type", int, [PieceType.NORMAL] * len(self.tokens))
        if len(types) != len(self.tokens):
            raise ValueError(
                f"{_PREFIX}token_type has {len(types)} items for {len(self.tokens)} tokens"
            )
        # Some fine-tuned models have the tokens that end their turns as plain ones.
        self._types = [
            PieceType.CONTROL if kind == PieceType.NORMAL and token in _ENDS_OF_TURN else kind
            for token, kind in zip(self.tokens, types, strict=True)
        ]

    @property
    def is_there(self) -> bool:
        """Whether the file has a vocabulary at all."""
        return self._model not in _NO_VOCABULARY

    def tokenizer_json(self) -> dict[str, Any]:
        """The content of the tokenizer.json that encodes as the one the file was made of."""
        tokenizer = self._byte_pairs() if self._model == "gpt2" else self._pieces()
        front = self._token("bos") if self._adds("bos") else None
        back = self._token("eos") if self._adds("eos") else None
        if front is not None or back is not None:
            tokenizer["post_processor"] = self._template(front, back)
        return tokenizer

    def tokenizer_config(self) -> dict[str, Any]:
        """The content of tokenizer_config.json, with the chat template."""
        named = {name: self._token(kind) for name, kind in _NAMED_TOKENS.items()}
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_bos_token": self._adds("bos") and named["bos_token"] is not None,
            "add_eos_token": self._adds("eos") and named["eos_token"] is not None,
            **{name: text for name, text in named.items() if text is not None},
        }
        templates = self._chat_templates()
        if list(templates) == ["default"]:
            settings["chat_template"] = templates["default"]
        elif templates:
            settings["chat_template"] = [
                {"name": name, "template": template} for name, template in templates.items()
            ]
        return settings

    def _chat_templates(self) -> dict[str, str]:
        """Chat templates by name; the one without a name is "default"."""
        names = self._metadata.get("tokenizer.chat_templates")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            names = []
        keys = {"default": "tokenizer.chat_template"}
        keys |= {name: f"tokenizer.chat_template.{name}" for name in sorted(names)}
        found = {name: self._metadata.get(key) for name, key in keys.items()}
        for name, template in found.items():
            if template is not None and not isinstance(template, str):
                raise ValueError(f"{keys[name]} is not a text")
        return {name: template for name, template in found.items() if template is not None}

    def end_ids(self) -> list[int]:
        """The tokens that end a sequence, the file's own end token first."""
        ids = {i: None for kind in ("eos", "eot", "eom") for i in self._token_ids(kind)}
        special = (PieceType.CONTROL, PieceType.USER_DEFINED)
        for i, (token, kind) in enumerate(zip(self.tokens, self._types, strict=True)):
            if kind in special and token in _ENDS_OF_TURN:
                ids[i] = None
        named = {self.tokens[i]: i for i in ids}
        if all(token in named for token in _ENDS_OF_HARMONY):
            ids.pop(named.get(_END_OF_PART, -1), None)
        return list(ids)

    def _byte_pairs(self) -> dict[str, Any]:
        rules = find_pre_tokenizer(self._get("pre") or "default")
        merges = [_pair(text) for text in self._list("merges", str)]
        vocab: dict[str, int] = {}
        added: list[AddedToken] = []
        for i, (token, kind) in enumerate(zip(self.tokens, self._types, strict=True)):
            if not token or (kind == PieceType.UNUSED and token == f"[PAD{i}]"):
                continue  # an id without a token
            if token in vocab:
                raise ValueError(f"its tokens {vocab[token]} and {i} have the same text {token!r}")
            vocab[token] = i
            if kind in (PieceType.CONTROL, PieceType.USER_DEFINED):
                is_special = kind == PieceType.CONTROL
                added.append(AddedToken(id=i, content=token, special=is_special))
        unknown = sorted({text for pair in merges for text in pair if text not in vocab})
        if unknown:
            raise ValueError(f"its merges have the part {unknown[0]!r}, which is no token")
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [token.entry() for token in added],
            "normalizer": {"type": "NFC"} if rules.composes else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(rules.steps)},
            "post_processor": None,
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": rules.ignore_merges,
                "vocab": vocab,
                "merges": [pair for pair in merges if "".join(pair) in vocab],
            },
        }

    def _pieces(self) -> dict[str, Any]:
        scores = self._list("scores", float)
        if len(scores) != len(self.tokens):
            raise ValueError(f"{_PREFIX}scores has {len(scores)} items, not {len(self.tokens)}")
        kinds = {int(kind) for kind in PieceType}
        if wrong := [kind for kind in self._types if kind not in kinds]:
            raise ValueError(f"{_PREFIX}token_type has the unknown type {wrong[0]!r}")
        # llama.cpp finds these in a text as it is, before spaces are replaced.
        added = {
            i: AddedToken(id=i, content=token, special=False)
            for i, (token, kind) in enumerate(zip(self.tokens, self._types, strict=True))
            if kind == PieceType.USER_DEFINED and token
        }
        pieces = tuple(
            Piece(
                token or f"[EMPTY_{i}]", score, PieceType.UNUSED if i in added else PieceType(kind)
            )
            for i, (token, score, kind) in enumerate(
                zip(self.tokens, scores, self._types, strict=True)
            )
        )
        bos, eos = self.token_id("bos"), self.token_id("eos")
        model = SentencePieceModel(
            pieces=pieces,
            model_type=ModelType.UNIGRAM if self._model == "t5" else ModelType.BPE,
            byte_fallback=PieceType.BYTE in self._types,
            bos_id=-1 if bos is None else bos,
            eos_id=-1 if eos is None else eos,
            space_is_suffix=False,
            character_map=self._character_map(),
            add_dummy_prefix=self._flag("add_space_prefix", default=self._model == "llama"),
            remove_extra_whitespaces=self._flag("remove_extra_whitespaces", default=False),
            escape_whitespaces=True,
        )
        tokenizer = pieces_json(model, added)
        if self._metadata.get("general.architecture") == "phi3":
            _strip_right(tokenizer)
        return tokenizer

    def _character_map(self) -> bytes:
        """Rules of Unicode normalization: the size of a trie in 4 bytes, the trie, texts."""
        rules = bytes(byte & 0xFF for byte in self._list("precompiled_charsmap", int, []))
        if rules and 4 + int.from_bytes(rules[:4], "little") >= len(rules):
            raise ValueError(f"{_PREFIX}precompiled_charsmap is cut off")
        return rules

    def _template(self, front: str | None, back: str | None) -> dict[str, Any]:
        def around(*names: str) -> list[dict[str, Any]]:
            steps: list[dict[str, Any]] = []
            for name in names:
                steps += [{"SpecialToken": {"id": text, "type_id": 0}} for text in [front] if text]
                steps.append({"Sequence": {"id": name, "type_id": 0}})
                steps += [{"SpecialToken": {"id": text, "type_id": 0}} for text in [back] if text]
            return steps

        ids = {text: self.tokens.index(text) for text in (front, back) if text is not None}
        return {
            "type": "TemplateProcessing",
            "single": around("A"),
            "pair": around("A", "B"),
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in ids.items()},
        }

    def _adds(self, kind: str) -> bool:
        default = self._model == ("llama" if kind == "bos" else "t5")
        if kind == "bos" and self._model == "gpt2":
            default = find_pre_tokenizer(self._get("pre") or "default").adds_bos
        return self._flag(f"add_{kind}_token", default=default)

    def token_id(self, kind: str) -> int | None:
        """The id of a special token such as "eos", or of the first if there is a list.

        None: no token, as in files that store -1 as a number without a sign.
        """
        return next(iter(self._token_ids(kind)), None)

    def _token_ids(self, kind: str) -> list[int]:
        given = self._metadata.get(f"{_PREFIX}{kind}_token_id")
        if given is None:
            given = _DEFAULT_IDS.get(self._model or "", {}).get(kind)
        values = given if isinstance(given, list) else [given]
        is_number = [isinstance(one, int) and not isinstance(one, bool) for one in values]
        return [
            one
            for one, fits in zip(values, is_number, strict=True)
            if fits and 0 <= one < len(self.tokens)
        ]

    def _token(self, kind: str) -> str | None:
        token_id = self.token_id(kind)
        return None if token_id is None else self.tokens[token_id]

    def _flag(self, key: str, *, default: bool) -> bool:
        value = self._metadata.get(_PREFIX + key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{_PREFIX}{key} must be true or false, not {value!r:.100}")
        return value

    def _get(self, key: str) -> str | None:
        value = self._metadata.get(_PREFIX + key)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{_PREFIX}{key} must be a text, not {value!r:.100}")
        return value

    def _list(self, key: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        value = self._metadata.get(_PREFIX + key, default)
        if value is None:
            raise ValueError(f"it has no key {_PREFIX + key!r}")
        if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
            raise ValueError(f"{_PREFIX}{key} must be a list of {kind.__name__}")
        return value


def _pair(text: str) -> tuple[str, str]:
    """The two parts of a merge; a first part can begin with a space."""
    left, space, right = text[1:].partition(" ")
    if not space or not right:
        raise ValueError(f"{_PREFIX}merges has {text!r:.100}, which is no pair")
    return text[:1] + left, right


def _strip_right(tokenizer: dict[str, Any]) -> None:
    """Special tokens of Phi-3 include the spaces behind them, which files do not say."""
    for token in tokenizer["added_tokens"]:
        token["rstrip"] = token["content"] not in _MARKED_RSTRIP
