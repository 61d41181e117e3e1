"""Converts vocabulary files in a child process: the gateway's side of
`conversion_process`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taco_gateway.sandbox.process_pool import ProcessLostError, ProcessPool
from taco_gateway.text.tokenizer.conversion_process import MAX_CPU_SECONDS
from taco_proto.errors import ConfigurationError

_MODULE = "taco_gateway.text.tokenizer.conversion_process"
_WALL_SECONDS = 2 * MAX_CPU_SECONDS


def converted_tokenizer(
    file: Path, settings: Mapping[str, Any], ids: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The text of a tokenizer.json, and `settings` with the defaults of the file. Blocks.

    Args:
        settings: content of tokenizer_config.json.
        ids: content of added_tokens.json, ids by text.

    Raises:
        ConfigurationError: the file cannot be converted.
    """
    request = {"file": str(file), "settings": dict(settings), "ids": dict(ids)}
    pool = ProcessPool(_MODULE, max_processes=1, environment={"MALLOC_ARENA_MAX": "1"})
    try:
        frames = pool.exchange([json.dumps(request).encode()], _WALL_SECONDS)
    except ProcessLostError as error:
        reason = str(error) or "it needs too much time or memory"
        raise ConfigurationError(f"cannot convert the tokenizer {file}: {reason}") from None
    finally:
        pool.close()
    reply = json.loads(frames[0])
    if "error" in reply:
        raise ConfigurationError(f"cannot convert the tokenizer {file}: {reply['error']}")
    return frames[1].decode(), {**reply["settings"], **settings}
