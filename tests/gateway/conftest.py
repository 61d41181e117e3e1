from collections.abc import Iterator
from typing import Any

import pytest

from support.gateway_app import App, AppMaker, build_app, small_tokenizer
from support.scripted_engine import Script
from taco_gateway.text.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def make_app(tokenizer: Tokenizer) -> Iterator[AppMaker]:
    """Makes applications over a scripted engine; their template processes end with the test."""
    apps: list[App] = []

    def make(
        script: Script,
        *,
        with_tokenizer: bool = True,
        own_tokenizer: Tokenizer | None = None,
        **config: Any,
    ) -> App:
        chosen = (own_tokenizer or tokenizer) if with_tokenizer else None
        apps.append(build_app(script, chosen, **config))
        return apps[-1]

    yield make
    for app in apps:
        app.gateway.close()
