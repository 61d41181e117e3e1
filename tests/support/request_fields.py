"""Every known field of a request and its effect on each route, read from the schemas.

`python -m support.request_fields` in tests/ writes the page docs/request-fields.md from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from taco_gateway.protocol.chat_request import ChatCompletionRequest
from taco_gateway.protocol.completion_request import CompletionRequest
from taco_gateway.protocol.generation_request import StreamOptions
from taco_gateway.protocol.responses_api.rejected_fields import rejected_fields
from taco_gateway.protocol.responses_api.response_request import ResponsesRequest
from taco_gateway.protocol.tokenize_requests import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
)
from taco_gateway.protocol.unsupported_fields import ACCEPTED, PROMPT_FIELDS, REJECTED

PAGE = Path(__file__).parents[2] / "docs" / "request-fields.md"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES = "/v1/responses"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"

# The request schemas of each route: a body is of one of them.
ROUTES: dict[str, tuple[type[BaseModel], ...]] = {
    CHAT: (ChatCompletionRequest,),
    COMPLETIONS: (CompletionRequest,),
    RESPONSES: (ResponsesRequest,),
    TOKENIZE: (TokenizeTextRequest, TokenizeChatRequest),
    DETOKENIZE: (DetokenizeRequest,),
}
HONOURED, REJECTED_HERE, ACCEPTED_HERE, UNKNOWN = "honoured", "400", "no effect", "unknown"
# The fields that each route rejects, with the values that request nothing.
REJECTED_BY: dict[str, Mapping[str, tuple[object, ...]]] = {
    CHAT: REJECTED,
    COMPLETIONS: REJECTED,
    RESPONSES: rejected_fields(ResponsesRequest.model_fields.keys()),
    TOKENIZE: {name: REJECTED[name] for name in PROMPT_FIELDS},
    DETOKENIZE: {},
}
_GENERATES = (CHAT, COMPLETIONS, RESPONSES)
_SCHEMAS = [schema for schemas in ROUTES.values() for schema in schemas]
_PROPERTIES: dict[type[BaseModel], dict[str, Any]] = {
    schema: schema.model_json_schema()["properties"] for schema in _SCHEMAS
}
_PROPERTIES[StreamOptions] = StreamOptions.model_json_schema()["properties"]


@dataclass(frozen=True, slots=True)
class RequestField:
    """A field as a client writes it (`stream_options.include_usage` is a nested field).

    Attributes:
        kind: type and range of its values; empty: no schema has the field.
        states: effect on each route.
    """

    name: str
    kind: str
    states: dict[str, str]


def request_fields() -> list[RequestField]:
    """In the order of the names."""
    names = {name for schemas in ROUTES.values() for name in _names(schemas)}
    return [
        RequestField(name, _kind(name), {route: _state(name, route) for route in ROUTES})
        for name in sorted(names.union(ACCEPTED, *REJECTED_BY.values()))
    ]


def _names(schemas: tuple[type[BaseModel], ...]) -> Iterator[str]:
    for schema in schemas:
        for name in schema.model_fields:
            yield name
            if name == "stream_options":
                yield from (f"{name}.{inner}" for inner in StreamOptions.model_fields)


def _state(name: str, route: str) -> str:
    if name in _names(ROUTES[route]):
        return HONOURED
    if name in REJECTED_BY[route]:
        return REJECTED_HERE
    return ACCEPTED_HERE if route in _GENERATES and name in ACCEPTED else UNKNOWN


def _kind(name: str) -> str:
    outer, _, inner = name.partition(".")
    if inner:
        return _kind_of(_PROPERTIES[StreamOptions][inner])
    routes: dict[str, list[str]] = {}  # by kind
    for route, schemas in ROUTES.items():
        for schema in schemas:
            if (part := _PROPERTIES[schema].get(outer)) is not None:
                routes.setdefault(_kind_of(part), []).append(f"`{route}`")
    if len(routes) < 2:
        return "".join(routes)
    return "; ".join(f"{', '.join(dict.fromkeys(of))}: {kind}" for kind, of in routes.items())


def _kind_of(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [_kind_of(part) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "$ref" in schema:
        return "object"
    kind = str(schema.get("type", schema.get("description", "")))
    if kind == "array":
        inner = _kind_of(schema["items"])
        plural = inner if inner.endswith("`") else f"{inner}s"
        kind = f"list of {plural}" if inner else "list"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None:
        kind += f", {'' if low is None else low}…{'' if high is None else high}"
    if "maxLength" in schema:
        kind += f", at most {schema['maxLength']} characters"
    if "maxItems" in schema:
        kind += f", at most {schema['maxItems']}"
    return kind


def fields_page() -> str:
    """Content of docs/request-fields.md."""
    lines = [_INTRODUCTION, "## Supported fields", "", _head("values"), _rule()]
    others = [field for field in request_fields() if HONOURED not in field.states.values()]
    for field in request_fields():
        if HONOURED in field.states.values():
            cells = [_SHOWN[state] for state in field.states.values()]
            lines.append(f"| `{field.name}` | {field.kind} | {' | '.join(cells)} |")
    lines += ["", "## Rejected fields", ""]
    lines += [
        "Chat, completions and responses answer 400 with the `code` `unsupported_parameter`. The",
        "values in the table request nothing and are accepted. For conversations, `/tokenize`",
        "rejects the fields that change the prompt: "
        f"{', '.join(f'`{name}`' for name in sorted(PROMPT_FIELDS))}.",
        "",
        "| field | accepted values |",
        "|---|---|",
    ]
    for field in others:
        if field.name in REJECTED:
            lines.append(f"| `{field.name}` | {_values(REJECTED[field.name])} |")
    lines += [
        "",
        f"`{RESPONSES}` also rejects these fields, which other routes ignore:",
        "",
        "| field | accepted values |",
        "|---|---|",
    ]
    for field in others:
        if field.name in REJECTED_BY[RESPONSES] and field.name not in REJECTED:
            lines.append(f"| `{field.name}` | {_values(REJECTED_BY[RESPONSES][field.name])} |")
    lines += [
        "",
        "## Ignored fields",
        "",
        "| field | reason |",
        "|---|---|",
    ]
    for field in others:
        if field.name in ACCEPTED:
            lines.append(f"| `{field.name}` | {ACCEPTED[field.name]} |")
    return "\n".join([*lines, ""])


def _values(neutral: tuple[object, ...]) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in neutral) or "only null"


_SHOWN = {HONOURED: "yes", REJECTED_HERE: "400", ACCEPTED_HERE: "no effect", UNKNOWN: "–"}


def _head(second: str) -> str:
    return f"| field | {second} | {' | '.join(f'`{route}`' for route in ROUTES)} |"


def _rule() -> str:
    return "|---|---|" + "---|" * len(ROUTES)


_INTRODUCTION = """\
# Request fields

The fields of OpenAI's and vLLM's request schemas, and their effect on each HTTP route:

- A field that would change the answer is supported, or rejected with a 400 whose `param` names it.
- A null field counts as absent.
- A field that a route does not know (–) is ignored, like any unknown field.
- Ranges are those of OpenAI's and vLLM's documents unless this page gives one.

[Parameters](serving.md#parameters) explains TACO's own fields and the fields that need more than a
type. `python -m support.request_fields` in `tests/` generates this page from the schemas.
"""


if __name__ == "__main__":
    PAGE.write_text(fields_page())
