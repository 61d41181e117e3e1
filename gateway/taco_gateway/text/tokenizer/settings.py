"""Applies tokenizer_config.json to a tokenizer: special tokens, and BOS and EOS of a text."""

from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

_NAMED_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


def content(token: Any) -> str | None:
    """The text of a token in a config: a string, or the fields of an AddedToken."""
    return token.get("content") if isinstance(token, dict) else token


def complete(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Adds special tokens and BOS/EOS flags that tokenizer.json may lack.

    Args:
        settings: content of tokenizer_config.json.
    """
    named = [content(settings.get(name)) for name in _NAMED_SPECIAL_TOKENS]
    named += [content(token) for token in settings.get("additional_special_tokens") or ()]
    special = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    backend.add_special_tokens([token for token in named if token and token not in special])
    _obey_bos_eos_flags(backend, settings)
    return backend


def _obey_bos_eos_flags(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
    # Checkpoints whose tokenizer.json adds no BOS rely on these flags (DeepSeek). Without flags,
    # tokenizer.json decides.
    ids = {}
    for name in ("bos_token", "eos_token"):
        text = content(settings.get(name))
        token_id = backend.token_to_id(text) if text else None
        if text is not None and token_id is not None:
            ids[name] = (text, token_id)
    added = backend.encode("", add_special_tokens=True).ids
    if not set(added) <= {token_id for _, token_id in ids.values()}:
        return
    wanted = {}
    for name, (_, token_id) in ids.items():
        flag = settings.get(f"add_{name}")
        wanted[name] = token_id in added if flag is None else bool(flag)
    if wanted == {name: token_id in added for name, (_, token_id) in ids.items()}:
        return
    front = f"{ids['bos_token'][0]} " if wanted.get("bos_token") else ""
    back = f" {ids['eos_token'][0]}" if wanted.get("eos_token") else ""
    backend.post_processor = TemplateProcessing(
        single=f"{front}$A{back}",
        pair=f"{front}$A{back} {front}$B{back}",
        special_tokens=list(ids.values()),
    )
