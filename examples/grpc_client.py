"""Streams an answer over gRPC: python examples/grpc_client.py

The server needs the flag --grpc-port 8001.
"""

import os

import grpc

from taco_proto import inference_pb2 as pb
from taco_proto.inference_pb2_grpc import InferenceStub


def main() -> None:
    address = os.environ.get("GRPC_ADDRESS", "localhost:8001")
    with grpc.insecure_channel(address) as channel:
        request = pb.ChatRequest(
            messages=[pb.ChatMessage(role="user", content="What does json.dumps do?")],
            sampling=pb.TextSampling(temperature=0.0, max_tokens=64),
        )
        for reply in InferenceStub(channel).Chat(request, timeout=30):
            print(reply.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
