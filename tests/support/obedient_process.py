"""A program for `ProcessPool`: waits, grows or refuses as its requests say."""

import os
from typing import Any

from taco_gateway.sandbox.child_loop import serve_json

_kept: list[bytes] = []


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Fields of a request, all optional: `refuse`, a reason; `grow`, bytes to keep; `wait`, a named
    pipe to read to its end.
    """
    if "refuse" in request:
        return {"error": request["refuse"]}
    if "grow" in request:
        _kept.append(b"x" * request["grow"])
    if "wait" in request:
        with open(request["wait"], "rb") as pipe:
            pipe.read()
    return {"pid": os.getpid()}


if __name__ == "__main__":
    serve_json(_answer, max_memory_bytes=2**30, cpu_seconds=lambda _: 60.0)
