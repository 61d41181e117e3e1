from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from support.gateway_app import App, AppMaker, build_app, small_tokenizer
from support.scripted_engine import Script
from taco_gateway.text.chat_template import prompt_rendering
from taco_gateway.text.chat_template.template_pool import TemplatePool
from taco_gateway.text.tokenizer.tokenizer import Tokenizer


class LastingTemplatePool(TemplatePool):
    """Outlasts the applications that use it."""

    def close(self) -> None:
        pass

    def close_at_last(self) -> None:
        super().close()


@pytest.fixture(scope="session")
def template_pool() -> Iterator[LastingTemplatePool]:
    pool = LastingTemplatePool()
    yield pool
    pool.close_at_last()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def make_app(tokenizer: Tokenizer, template_pool: TemplatePool) -> Iterator[AppMaker]:
    """Makes applications over a scripted engine.

    They share their template processes, because to start one takes longer than most tests.
    """
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

    with patch.object(prompt_rendering, "TemplatePool", lambda: template_pool):
        yield make
    for app in apps:
        app.gateway.close()
