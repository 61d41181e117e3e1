"""A client that disconnects or does not read frees its resources at once."""

import asyncio
from collections.abc import Callable

import pytest

from support.asgi import AsgiCall
from support.gateway_app import AppMaker
from support.patience import PATIENCE_SECONDS
from support.scripted_engine import Hold, Script, Step, replay
from taco_common.http_protocol import ABORT_EXTENSION
from taco_gateway.engine.engine_client import SequenceUpdate
from taco_proto.requests import FinishReason, GenerateRequest

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "x"}]


def stuck_after_a_token(holds: list[Hold]) -> Script:
    def script(request: GenerateRequest) -> list[Step]:
        holds.append(Hold())
        steps: list[Step] = [SequenceUpdate(i, [50]) for i in range(request.sampling.n)]
        return [*steps, holds[-1]]

    return script


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_disconnect_ends_the_request_upstream(
    make_app: AppMaker, path: str, n: int, stream: bool
) -> None:
    holds: list[Hold] = []
    app = make_app(stuck_after_a_token(holds))
    body = {"messages": MESSAGES, "prompt": "x", "n": n, "stream": stream}
    call = AsgiCall(app.app, path, body)
    task = asyncio.create_task(call.run())
    await until(lambda: bool(holds))
    await holds[0].reached.wait()
    call.disconnect()
    await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert app.engine.streams[0].given_up
    exposition = app.gateway.metrics.exposition().decode()
    assert 'disconnects_total{model_name="org/scripted"} 1.0' in exposition
    assert 'requests_active{model_name="org/scripted"} 0.0' in exposition


async def test_a_disconnect_ends_all_prompts(make_app: AppMaker) -> None:
    holds: list[Hold] = []
    app = make_app(stuck_after_a_token(holds))
    call = AsgiCall(app.app, COMPLETIONS, {"prompt": [[40], [41], [42]], "stream": True})
    task = asyncio.create_task(call.run())
    await until(lambda: len(holds) == 3)
    for hold in holds:
        await hold.reached.wait()
    call.disconnect()
    await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert [stream.given_up for stream in app.engine.streams] == [True] * 3


async def test_a_disconnect_before_the_first_token(make_app: AppMaker) -> None:
    hold = Hold()
    app = make_app(lambda _: [hold])
    call = AsgiCall(app.app, CHAT, {"messages": MESSAGES, "stream": True})
    task = asyncio.create_task(call.run())
    await hold.reached.wait()
    call.disconnect()
    await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert app.engine.streams[0].given_up
    assert not call.chunks


async def test_500_disconnects_leave_no_request_behind(make_app: AppMaker) -> None:
    holds: list[Hold] = []
    app = make_app(stuck_after_a_token(holds))
    calls = [
        AsgiCall(app.app, COMPLETIONS, {"prompt": [40], "stream": number % 2 == 0})
        for number in range(500)
    ]
    tasks = [asyncio.create_task(call.run()) for call in calls]
    await until(lambda: len(holds) == 500)
    for call in calls:
        call.disconnect()
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_SECONDS)
    assert all(stream.given_up for stream in app.engine.streams)
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_does_not_read_is_disconnected(make_app: AppMaker) -> None:
    app = make_app(replay(list(range(40, 60))), stall_timeout=0.02)
    aborted: list[bool] = []

    async def never_read(_: bytes) -> None:
        await asyncio.Event().wait()

    extensions = {ABORT_EXTENSION: {"abort": lambda: aborted.append(True)}}
    body = {"prompt": "x", "stream": True}
    call = AsgiCall(app.app, COMPLETIONS, body, on_body=never_read, extensions=extensions)
    await asyncio.wait_for(call.run(), PATIENCE_SECONDS)
    assert aborted == [True]
    assert app.engine.streams[0].given_up


async def test_a_finished_answer_is_no_disconnect(make_app: AppMaker) -> None:
    app = make_app(replay([50], FinishReason.STOP))
    for stream in (False, True):
        call = AsgiCall(app.app, COMPLETIONS, {"prompt": "x", "stream": stream})
        await call.run()
        assert call.status == 200
        assert not app.engine.streams[-1].given_up
    exposition = app.gateway.metrics.exposition().decode()
    assert 'disconnects_total{model_name="org/scripted"} 0.0' in exposition
