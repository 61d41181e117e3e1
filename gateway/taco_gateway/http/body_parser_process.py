"""Child process that parses and validates large request bodies; `body_parser_pool` starts it.

`json.loads` and pydantic hold the interpreter lock while they run, so a thread would block every
stream of the gateway. Here `child_loop` limits the CPU time and the memory of each body. The low
priority lets the gateway, the scheduler and the worker run first on a machine with few cores.

A message has two frames, the name of the schema and the body. The answer is `ok` and the frames of
`body_frames.pack`, or `error` and the error as JSON.
"""

import gc
import json
import os

from pydantic import ValidationError

from taco_gateway.api_errors import ApiError, as_api_error
from taco_gateway.http.body_frames import pack
from taco_gateway.http.strict_json import check_counts, parse_json_object
from taco_gateway.protocol.request_schemas import REQUEST_SCHEMAS
from taco_gateway.sandbox.child_loop import cpu_limit, serve
from taco_proto.errors import InvalidParameterError

CPU_SECONDS = 10.0
MAX_MEMORY_BYTES = 2**31
# One process at 0 has nine times the share of one at 10. At 19 it would be 68 times, and on a busy
# machine valid bodies would take minutes.
NICENESS = 10


def _answer(frames: list[bytes]) -> list[bytes]:
    schema, raw = frames
    try:
        with cpu_limit(CPU_SECONDS):
            body = parse_json_object(raw)
            check_counts(body)
            REQUEST_SCHEMAS[schema.decode()].validate(body)
            return [b"ok", *pack(body)]
    except (ApiError, InvalidParameterError, ValidationError) as error:
        return _error(as_api_error(error))
    except OverflowError:
        return _error(ApiError(400, "The request body has an integer above 2**31 - 1."))
    except MemoryError:
        return _error(ApiError(400, "The request body needs too much memory."))


def _error(error: ApiError) -> list[bytes]:
    values = {
        "status": error.status,
        "message": error.message,
        "param": error.param,
        "code": error.code,
    }
    return [b"error", json.dumps(values).encode()]


if __name__ == "__main__":
    os.nice(NICENESS)  # after the imports, which the first body waits for
    gc.disable()  # JSON has no cycles, and looking for them takes longer than parsing
    serve(_answer, max_memory_bytes=MAX_MEMORY_BYTES)
