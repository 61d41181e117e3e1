"""Child process that turns constraints into grammars; `grammar_pool` starts it.

A client's schema or regular expression may take any time and memory to compile; a process can be
stopped. A request is {"kind", "value", "options"}, the reply {"text"} or {"error"}.
"""

import os
from typing import Any

from taco_gateway.sandbox.child_loop import serve_json
from taco_gateway.text.grammar.canonical import ConstraintError, canonical_grammar
from taco_gateway.text.grammar.validation import check_grammar
from taco_proto.grammars import MAX_GRAMMAR_BYTES

CPU_SECONDS = 5.0
MAX_MEMORY_BYTES = 2**31
NICENESS = 10  # tokens of other requests come first


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    kind, value = request["kind"], request["value"]
    try:
        text = canonical_grammar(kind, value, request["options"])
        if len(text.encode()) > MAX_GRAMMAR_BYTES:
            raise ConstraintError(f"it is larger than {MAX_GRAMMAR_BYTES} bytes")
        check_grammar(kind, value, text)
    except (ConstraintError, UnicodeEncodeError) as error:
        return {"error": str(error)}
    except (MemoryError, RecursionError):
        return {"error": "it is too complex"}
    return {"text": text}


if __name__ == "__main__":
    os.nice(NICENESS)
    serve_json(_answer, max_memory_bytes=MAX_MEMORY_BYTES, cpu_seconds=lambda request: CPU_SECONDS)
