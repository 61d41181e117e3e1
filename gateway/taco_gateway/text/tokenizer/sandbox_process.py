"""Child process that encodes with an untrusted tokenizer, within limits of time and memory.

The first request is {"tokenizer": text of tokenizer.json, "settings": content of
tokenizer_config.json}. Others are {"text", "add_special_tokens"} or {"parts"}. Replies are {"ids"}
or {"error"}.
"""

from typing import Any

import tokenizers

from taco_gateway.sandbox.child_loop import serve_json
from taco_gateway.text.tokenizer.plain_text import PlainTextEncoder
from taco_gateway.text.tokenizer.settings import complete

MAX_MEMORY_BYTES = 2 * 2**30
_LOAD_SECONDS = 30.0
_CHARS_PER_SECOND = 500_000
_MAX_TOKENS = 2**24


def cpu_seconds(request: dict[str, Any]) -> float:
    """Limit of CPU time for a request; normal tokenizers need a fraction of it."""
    if "tokenizer" in request:
        return _LOAD_SECONDS
    texts = request.get("parts") or [request.get("text", "")]
    return 1.0 + sum(len(text) for text in texts if isinstance(text, str)) / _CHARS_PER_SECOND


class _Encoder:
    def __init__(self) -> None:
        self._backend: tokenizers.Tokenizer | None = None
        self._plain_text: PlainTextEncoder | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if "tokenizer" in request:
                self._load(request["tokenizer"], request["settings"])
                return {}
            ids = self._encode(request)
        except BaseException as error:  # a panic of the library is not an Exception
            return {"error": " ".join(str(error).split())[:300] or type(error).__name__}
        if len(ids) > _MAX_TOKENS:
            return {"error": f"it produces {len(ids)} tokens"}
        return {"ids": ids}

    def _load(self, text: str, settings: dict[str, Any]) -> None:
        backend = complete(tokenizers.Tokenizer.from_str(text), settings)
        backend.no_truncation()
        backend.no_padding()
        self._backend, self._plain_text = backend, PlainTextEncoder(backend)

    def _encode(self, request: dict[str, Any]) -> list[int]:
        assert self._backend is not None
        assert self._plain_text is not None
        if "parts" in request:
            return self._plain_text.encode(request["parts"])
        special = request["add_special_tokens"]
        return self._backend.encode(request["text"], add_special_tokens=special).ids


if __name__ == "__main__":
    serve_json(_Encoder().answer, max_memory_bytes=MAX_MEMORY_BYTES, cpu_seconds=cpu_seconds)
