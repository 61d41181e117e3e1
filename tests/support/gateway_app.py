"""The gateway's application over a scripted engine, and how to talk to it in process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import tokenizers
from fastapi import FastAPI
from tokenizers import decoders, models, pre_tokenizers, trainers

from support.scripted_engine import MODEL_INFO, Script, ScriptedEngine
from taco_gateway.api_keys.key_ring import KeyRing
from taco_gateway.app import create_app
from taco_gateway.gateway import Gateway
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.config import GatewayConfig, ModelConfig
from taco_proto.requests import ModelInfo

MODEL = "org/scripted"
_SPECIAL = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(path: Path) -> Path:
    """A small byte-level BPE in Hugging Face's format, with a ChatML template."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["The quick brown fox jumps over the lazy dog."] * 4, trainer)
    path.mkdir(parents=True, exist_ok=True)
    backend.save(str(path / "tokenizer.json"))
    settings = {
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "chat_template": _CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def small_tokenizer(path: Path) -> Tokenizer:
    tokenizer = load_tokenizer(ModelConfig(model=str(write_tokenizer(path))))
    assert tokenizer is not None
    return tokenizer


@dataclass(frozen=True)
class App:
    """An application, the engine behind it, and an HTTP client in front of it."""

    app: FastAPI
    engine: ScriptedEngine
    http: httpx.AsyncClient

    @property
    def gateway(self) -> Gateway:
        gateway = self.app.state.gateway
        assert isinstance(gateway, Gateway)
        return gateway

    async def events(self, path: str, **body: Any) -> list[Any]:
        """The JSON of all events of a stream, which must be well-formed and end with [DONE]."""
        response = await self.http.post(path, json={"stream": True, **body})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        *frames, rest = response.text.split("\n\n")
        assert rest == ""
        data = [frame.removeprefix("data: ") for frame in frames if not frame.startswith(":")]
        assert data.pop() == "[DONE]"
        return [json.loads(item) for item in data]


AppMaker = Callable[..., App]


def build_app(
    script: Script,
    tokenizer: Tokenizer | None,
    *,
    info: ModelInfo | None = MODEL_INFO,
    keys: KeyRing | None = None,
    **config: Any,
) -> App:
    engine = ScriptedEngine(script, info)
    model = ModelConfig(model="/models/scripted", served_model_names=(MODEL, "alias"))
    settings = {"log_requests": False, **config}
    app = create_app(GatewayConfig(model=model, scheduler="", **settings), engine, tokenizer, keys)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return App(app, engine, httpx.AsyncClient(transport=transport, base_url="http://gateway"))
