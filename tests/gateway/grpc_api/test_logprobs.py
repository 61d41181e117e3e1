"""Log probabilities over gRPC are those over HTTP."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.gateway_app import build_app
from support.scripted_engine import MODEL_INFO, Script, Step, prompt_of
from taco_gateway.engine.engine_client import SequenceUpdate
from taco_gateway.grpc_api.inference_service import start_inference_server
from taco_gateway.protocol.logprobs import finite
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto import inference_pb2 as pb
from taco_proto.inference_pb2_grpc import InferenceStub
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest

EOS = MODEL_INFO.eos_token_ids[0]


def script(token_ids: list[int]) -> Script:
    """Each token beside the token 50 and an impossible one, then the end-of-sequence token."""

    def steps(request: GenerateRequest) -> Iterator[Step]:
        listed = request.sampling.logprob_token_ids
        width = len(listed or ()) or request.sampling.logprobs
        for index in range(request.sampling.n):
            for place, token in enumerate([*token_ids, EOS]):
                columns = None
                if width is not None:
                    top = list(listed or [50, 60][:width])
                    logprobs = [-0.5 - place, -0.25, -math.inf][: 1 + width]
                    columns = LogprobColumns(
                        [1 + width], [token, *top], logprobs, [2, 1, 9][: 1 + width]
                    )
                finish = FinishReason.STOP if token == EOS else FinishReason.RUNNING
                stop = EOS if token == EOS else -1
                yield SequenceUpdate(index, [token], finish, stop_token_id=stop, logprobs=columns)

    return steps


@pytest.mark.parametrize("asked", [{"logprobs": 2}, {"logprobs": 0}, {"logprob_token_ids": [50]}])
async def test_replies_have_the_log_probabilities_of_their_tokens(
    tokenizer: Tokenizer, tmp_path: Path, asked: dict[str, Any]
) -> None:
    # Characters of three bytes, each in as many tokens: text comes with the last one.
    token_ids = tokenizer.encode("fox 漢字 jumps", add_special_tokens=False)
    app = build_app(script(token_ids), tokenizer)
    address = f"unix:{tmp_path}/inference.sock"
    server = await start_inference_server(address, app.gateway)
    try:
        async with app.http, grpc.aio.insecure_channel(address) as channel:
            sampling = pb.TextSampling(n=2, max_tokens=99, **asked)
            messages = [pb.ChatMessage(role="user", content="Hi")]
            call = InferenceStub(channel).Chat(pb.ChatRequest(messages=messages, sampling=sampling))
            replies = [reply async for reply in call]
            body = {"messages": [{"role": "user", "content": "Hi"}], "n": 2, "logprobs": True}
            more = {"top_logprobs": asked["logprobs"]} if "logprobs" in asked else asked
            answer = await app.http.post("/v1/chat/completions", json={**body, **more})
    finally:
        await server.stop(None)
        app.gateway.close()
    assert prompt_of(app.engine.requests[0]) == prompt_of(app.engine.requests[1])
    for choice in answer.json()["choices"]:
        rows = [
            row for reply in replies if reply.index == choice["index"] for row in reply.logprobs
        ]
        shown = [
            {**entry(row.chosen), "top_logprobs": [entry(part) for part in row.top]} for row in rows
        ]
        expected = choice["logprobs"]["content"]
        assert [without_text(row) for row in expected] == shown
        assert [row.chosen.token_id for row in rows] == [*token_ids, EOS]
        assert [row.chosen.rank for row in rows] == [2] * len(rows)
        text = b"".join(row.chosen.token for row in rows).decode()
        assert text == choice["message"]["content"] == "fox 漢字 jumps"


def entry(candidate: pb.CandidateLogprob) -> dict[str, object]:
    return {"logprob": finite(candidate.logprob), "bytes": list(candidate.token)}


def without_text(row: dict[str, object]) -> dict[str, object]:
    """HTTP also spells the bytes."""
    assert isinstance(row["top_logprobs"], list)
    top = [{"logprob": part["logprob"], "bytes": part["bytes"]} for part in row["top_logprobs"]]
    return {"logprob": row["logprob"], "bytes": row["bytes"], "top_logprobs": top}


async def test_replies_have_none_unless_requested(tokenizer: Tokenizer, tmp_path: Path) -> None:
    app = build_app(script([60]), tokenizer)
    address = f"unix:{tmp_path}/inference.sock"
    server = await start_inference_server(address, app.gateway)
    try:
        async with app.http, grpc.aio.insecure_channel(address) as channel:
            stub = InferenceStub(channel)
            async for reply in stub.Complete(pb.CompleteRequest(text="x")):
                assert not reply.logprobs
            sampling = pb.TextSampling(logprobs=21)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                async for _ in stub.Complete(pb.CompleteRequest(text="x", sampling=sampling)):
                    pass
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert dict(failed.value.trailing_metadata() or ())["param"] == "logprobs"
    finally:
        await server.stop(None)
        app.gateway.close()
