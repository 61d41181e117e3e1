"""Child process that converts an untrusted vocabulary file, within limits of time and memory.

The request is {"file", "settings", "ids"}, the arguments of `convert`. The reply is {"error"}, or
{"settings"} and a second frame with the text of the tokenizer.json.
"""

import json
from pathlib import Path

from taco_common.tokenizer_files.convert import convert, dump
from taco_gateway.sandbox.child_loop import cpu_limit, serve

MAX_MEMORY_BYTES = 4 * 2**30
MAX_CPU_SECONDS = 60.0


def answer(frames: list[bytes]) -> list[bytes]:
    """The reply to a request."""
    request = json.loads(frames[0])
    with cpu_limit(MAX_CPU_SECONDS):
        try:
            tokenizer, defaults = convert(
                Path(request["file"]), request["settings"], request["ids"]
            )
            return [json.dumps({"settings": defaults}).encode(), dump(tokenizer)]
        except MemoryError:
            return [json.dumps({"error": "it needs too much memory"}).encode()]
        except (ValueError, OSError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            return [json.dumps({"error": reason}).encode()]


if __name__ == "__main__":
    serve(answer, max_memory_bytes=MAX_MEMORY_BYTES)
