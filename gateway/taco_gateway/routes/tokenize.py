"""`POST /tokenize` and `POST /detokenize`, with the tokenizer of the served model."""

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter, Request

from taco_gateway.gateway import gateway_of, key_of
from taco_gateway.protocol.request_schemas import DETOKENIZE, TOKENIZE
from taco_gateway.protocol.responses import DetokenizeResponse, TokenizeResponse
from taco_gateway.protocol.token_ids import MAX_TOKEN_ID, are_in_range
from taco_gateway.protocol.tokenize_requests import TokenizeChatRequest
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.errors import InvalidParameterError
from taco_proto.requests import ModelInfo

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> TokenizeResponse:
    """Token ids of a prompt, or of a conversation after the chat template."""
    gateway = gateway_of(request)
    wanted = await gateway.read_request(request, TOKENIZE)
    gateway.check_model(wanted.model, key_of(request))
    tokenizer = gateway.require_tokenizer()
    if isinstance(wanted, TokenizeChatRequest):
        gateway.check_chat_template(wanted.chat_template)
        token_ids = await gateway.engine.encode_chat(
            wanted.template_messages,
            add_generation_prompt=wanted.starts_new_turn,
            continue_final_message=wanted.continue_final_message,
            add_special_tokens=wanted.add_special_tokens,
            chat_template=wanted.chat_template,
            template_kwargs=wanted.template_kwargs,
            documents=wanted.documents or (),
            tools=wanted.offered_tools,
        )
    else:
        token_ids = await gateway.engine.encode(
            wanted.prompt, add_special_tokens=wanted.add_special_tokens
        )
    token_strs: list[str] | None = None
    if wanted.return_token_strs:
        token_strs = await asyncio.to_thread(
            lambda: [tokenizer.decode([i], skip_special_tokens=False) for i in token_ids]
        )
    info = gateway.client.model_info()
    return TokenizeResponse(
        tokens=token_ids,
        count=len(token_ids),
        max_model_len=info.max_model_len if info is not None else None,
        token_strs=token_strs,
    )


@router.post("/detokenize")
async def detokenize(request: Request) -> DetokenizeResponse:
    gateway = gateway_of(request)
    wanted = await gateway.read_request(request, DETOKENIZE)
    gateway.check_model(wanted.model, key_of(request))
    tokenizer = gateway.require_tokenizer()
    text = await asyncio.to_thread(_text, tokenizer, wanted.tokens, gateway.client.model_info())
    return DetokenizeResponse(prompt=text)


def _text(tokenizer: Tokenizer, token_ids: Sequence[int], info: ModelInfo | None) -> str:
    """Raises:
    InvalidParameterError: a token id is not in the model's vocabulary, as far as it is known.
    """
    highest = info.vocab_size - 1 if info is not None and info.vocab_size else MAX_TOKEN_ID
    if not are_in_range(token_ids, highest):
        raise InvalidParameterError(
            f"tokens has token id {max(token_ids)}, which is not in 0…{highest}.", "tokens"
        )
    return tokenizer.decode(token_ids, skip_special_tokens=False)
