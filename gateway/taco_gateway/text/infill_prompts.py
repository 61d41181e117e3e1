"""Requests with a suffix: the model writes the text between the prompt and the suffix."""

import asyncio
from collections.abc import Callable

from taco_gateway.text.request_checks import check_prompt_length, check_text
from taco_gateway.text.tokenizer.infilling import InfillEncoder
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.errors import InvalidParameterError
from taco_proto.requests import ModelInfo
from taco_proto.sampling_params import SamplingParams


class InfillPrompts:
    """Tokenizes prompts with a suffix, if the model knows fill-in-the-middle.

    Args:
        model_info: describes the served model; raises EngineError if no worker serves it.
    """

    def __init__(self, tokenizer: Tokenizer | None, model_info: Callable[[], ModelInfo]) -> None:
        self._encoder = None if tokenizer is None else InfillEncoder.of(tokenizer)
        self._model_info = model_info

    async def encode(
        self, prefix: str, suffix: str, *, add_special_tokens: bool = True
    ) -> list[int]:
        """Tokenizes the texts around the answer, off the event loop.

        Raises:
            InvalidParameterError: the model does not know fill-in-the-middle, a text is not valid
                Unicode, or both together are too long.
            EngineError: no worker serves the model (503).
        """
        encoder, info = self._known_encoder(), self._model_info()
        check_text(prefix, "prompt")
        check_text(suffix, "suffix")
        least = encoder.min_num_tokens(prefix, suffix)
        check_prompt_length(least, info.max_model_len, at_least=True)
        token_ids = await asyncio.to_thread(
            encoder.encode, prefix, suffix, add_special_tokens=add_special_tokens
        )
        check_prompt_length(len(token_ids), info.max_model_len)
        return token_ids

    def with_ends(self, params: SamplingParams) -> SamplingParams:
        """The parameters of such a request: also the model's markers end the answer.

        Raises:
            InvalidParameterError: the model does not know fill-in-the-middle.
            EngineError: no worker serves the model (503).
        """
        encoder, info = self._known_encoder(), self._model_info()
        if params.ignore_eos:
            return params
        known = {*info.eos_token_ids, *(params.stop_token_ids or ())}
        ends = [i for i in encoder.end_token_ids if i < info.vocab_size and i not in known]
        return params.with_updates(stop_token_ids=(*(params.stop_token_ids or ()), *ends))

    def _known_encoder(self) -> InfillEncoder:
        if self._encoder is None:
            raise InvalidParameterError(
                "suffix is not supported by this model: its tokenizer has no markers for "
                "fill-in-the-middle.",
                "suffix",
                "unsupported_parameter",
            )
        return self._encoder
