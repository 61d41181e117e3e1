"""The Inference service over mutual TLS: for internal callers with a certificate, and a key too."""

from pathlib import Path

import grpc
import grpc.aio

from support.certificates import make_certificates, tls_config
from support.gateway_app import build_app, small_tokenizer
from support.scripted_engine import replay
from support.serving import free_port
from taco_common.grpc_tls import open_channel
from taco_common.tls import Role
from taco_gateway.grpc_api.inference_service import start_inference_server
from taco_proto import inference_pb2 as pb
from taco_proto.config import TlsConfig
from taco_proto.inference_pb2_grpc import InferenceStub
from taco_proto.requests import FinishReason


async def code_of(address: str, tls: TlsConfig | None, key: str = "secret") -> grpc.StatusCode:
    async with open_channel(address, (), tls, Role.GATEWAY) as channel:
        metadata = [("authorization", f"Bearer {key}")]
        call = InferenceStub(channel).Complete(pb.CompleteRequest(text="the"), metadata=metadata)
        try:
            return (
                grpc.StatusCode.OK if [reply async for reply in call] else grpc.StatusCode.UNKNOWN
            )
        except grpc.aio.AioRpcError as error:
            return error.code()


async def test_callers_need_a_role_and_a_key(tmp_path: Path) -> None:
    directory = make_certificates(tmp_path / "tls", *Role)
    tokenizer = small_tokenizer(tmp_path / "tokenizer")
    script = replay(tokenizer.encode("fox", add_special_tokens=False), FinishReason.STOP)
    tls = tls_config(directory, Role.GATEWAY)
    app = build_app(script, tokenizer, api_keys=("secret",), tls=tls)
    address = f"127.0.0.1:{free_port()}"
    server = await start_inference_server(address, app.gateway)
    try:
        codes = {role: await code_of(address, tls_config(directory, role)) for role in Role}
        client = tls_config(directory, Role.CLIENT)
        assert await code_of(address, client, "wrong") == grpc.StatusCode.UNAUTHENTICATED
        assert await code_of(address, None) == grpc.StatusCode.UNAVAILABLE
    finally:
        await server.stop(None)
        await app.http.aclose()
        app.gateway.engine.close()
    allowed = {role for role, code in codes.items() if code == grpc.StatusCode.OK}
    assert allowed == {Role.CLIENT, Role.GATEWAY}
    assert {codes[role] for role in set(Role) - allowed} == {grpc.StatusCode.PERMISSION_DENIED}
