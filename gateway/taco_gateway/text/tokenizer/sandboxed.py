"""A tokenizer that encodes in sandboxed child processes; `safety` decides which one does."""

from collections.abc import Sequence
from typing import Any

import tokenizers

from taco_gateway.sandbox.process_pool import WALL_SECONDS, ProcessLostError, ProcessPool
from taco_gateway.text.tokenizer.sandbox_process import cpu_seconds
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer, TokenizerSettings
from taco_gateway.text.tokenizer.tokenizer_error import TokenizerError

_MAX_PROCESSES = 2
# One thread and one arena, because each reserves address space, which is limited.
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}


class SandboxedTokenizer(FastTokenizer):
    """Decodes in this process and encodes in child processes.

    Args:
        vocabulary: the tokenizer without the steps that may be unsafe.
        text: content of tokenizer.json.
        raw_settings: content of tokenizer_config.json.
    """

    def __init__(
        self,
        vocabulary: tokenizers.Tokenizer,
        settings: TokenizerSettings,
        text: str,
        raw_settings: dict[str, Any],
    ) -> None:
        super().__init__(vocabulary, settings)
        self._processes = ProcessPool(
            "taco_gateway.text.tokenizer.sandbox_process",
            first_request={"tokenizer": text, "settings": raw_settings},
            environment=_ENVIRONMENT,
            max_processes=_MAX_PROCESSES,
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._ask({"text": text, "add_special_tokens": add_special_tokens})

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        return self._ask({"parts": list(parts)})

    def min_num_tokens(self, text: str) -> int:
        return 0  # its normalizer may shorten a text by any factor

    def close(self) -> None:
        self._processes.close()

    def _ask(self, request: dict[str, Any]) -> list[int]:
        try:
            reply = self._processes.ask(request, WALL_SECONDS + cpu_seconds(request))
        except ProcessLostError as error:
            raise TokenizerError(str(error) or "it needs too much time or memory") from None
        if "error" in reply:
            raise TokenizerError(reply["error"])
        ids: list[int] = reply["ids"]
        return ids
