"""Constraints that try to stop the server, on real processes: one error each, and no neighbour's
stream changes.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.checkpoints import make_checkpoint
from support.serving import Serving

NUM_LEVELS = 100_000
NUM_ENUM_BYTES = 10 * 2**20
ENUM = [f"{number:099d}" for number in range(NUM_ENUM_BYTES // 100)]
BODY: dict[str, Any] = {"prompt": "The quick", "max_tokens": 200, "seed": 3, "stream": True}
FREE = {**BODY, "max_tokens": 60, "ignore_eos": True}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
BOUND = {**BODY, "guided_json": SCHEMA}
BLOW_UP = "((((a{0,99}){0,99}){0,99}){0,99}){0,99}"


def nested(opening: str, middle: str, closing: str, levels: int = NUM_LEVELS) -> str:
    return opening * levels + middle + closing * levels


# Names of cases, and the fields that they add to a request.
HOSTILE: dict[str, dict[str, Any]] = {
    # what another place would have to give
    "remote ref": {"guided_json": {"$ref": "https://example.com/schema.json"}},
    "ref to a file": {"guided_json": {"properties": {"a": {"$ref": "file:///etc/passwd"}}}},
    "ref to a sibling": {"guided_json": {"$id": "https://a.b/", "items": {"$ref": "c.json#/d"}}},
    "ref to nothing": {"guided_json": {"$ref": "#/$defs/missing"}},
    "import of a file": {"guided_grammar": "%import /etc/passwd\nstart: passwd"},
    # depth
    "deep schema": {"guided_json": nested('{"items":', "{}", "}", 150)},
    "deep text": {"guided_json": nested("[", "", "]")},
    "deep regex": {"guided_regex": nested("(", "a", ")")},
    "deep Lark": {"guided_grammar": "start: " + nested("(", '"a"', ")")},
    "deep GBNF": {"guided_grammar": "root ::= " + nested("(", '"a"', ")")},
    # what no automaton reads
    "look-ahead": {"guided_regex": "(?=a)b"},
    "look-behind": {"guided_regex": "(?<!a)b"},
    "back-reference": {"guided_regex": r"(a)\1"},
    "look-ahead in a pattern": {"guided_json": {"type": "string", "pattern": "^(?!a)b"}},
    # no text at all
    "empty class": {"guided_regex": r"[^\s\S]"},
    "empty enum": {"guided_json": {"enum": []}},
    "false": {"guided_json": False, "structured_outputs": {"json": False}},
    "empty range": {"guided_json": {"type": "integer", "minimum": 5, "maximum": 4}},
    "empty length": {"guided_json": {"type": "string", "minLength": 3, "maxLength": 2}},
    "text that ends nowhere": {"guided_grammar": 'start: "a" end\nend: /[^\\s\\S]/'},
    "endless object": {
        "guided_json": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    },
    # size
    "large enum": {"guided_json": {"enum": ENUM}},
    "large enum as text": {"guided_json": json.dumps({"enum": ENUM})},
    "large choice": {"guided_choice": ENUM},
    "large regex": {"guided_regex": "|".join(ENUM)},
    "large grammar": {"guided_grammar": "start: " + " | ".join(map(json.dumps, ENUM))},
    "many rules": {"guided_grammar": "\n".join(f"r{i}: r{i + 1}" for i in range(20_000))},
    # time and memory
    "repetitions of classes": {"guided_regex": r"(\w{1,999}[^\W\d]{1,999}){1,999}"},
    "repetition of a repetition": {"guided_grammar": 'root ::= ("a"{1,99999}){1,99999}'},
    # switches of the library
    "lenient": {"guided_json": {"x-guidance": {"lenient": True}, "uniqueItems": True}},
    "lenient inside": {
        "guided_json": {"properties": {"a": {"x-guidance": {"lenient": True}, "not": {}}}}
    },
    "lenient in Lark": {"guided_grammar": 'start: %json {"x-guidance": {"lenient": true}}'},
    # wrong forms
    "number as schema": {"guided_json": 5},
    "list as schema": {"guided_json": [SCHEMA]},
    "number as regex": {"guided_regex": 5},
    "numbers to choose": {"guided_choice": [1]},
    "broken regex": {"guided_regex": "(a"},
    "broken pattern": {"guided_json": {"type": "string", "pattern": "[a"}},
    "half a surrogate pair": {"guided_choice": ["\ud800"]},
    "two": {"guided_regex": "a", "guided_choice": ["a"]},
    "unknown back end": {"guided_regex": "a", "guided_decoding_backend": "mine"},
}
# Slow in engines that try one way after the other; here they are answered.
ANSWERED: dict[str, dict[str, Any]] = {
    "nested repetitions": {"guided_regex": BLOW_UP},
    "many ways": {"guided_regex": "(x+x+)+y"},
    "many starts": {"guided_regex": "(.*a){20}"},
    "pattern in a schema": {"guided_json": {"type": "string", "pattern": BLOW_UP}},
    "whitespace": {"guided_json": SCHEMA, "guided_whitespace_pattern": BLOW_UP},
    "no whitespace": {"guided_json": SCHEMA, "guided_whitespace_pattern": r"[^\s\S]+"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("model"))
    directory: Path = tmp_path_factory.mktemp("serve")
    with Serving(directory, checkpoint, "--num-gpu-blocks-override", "256") as serving:
        yield serving.wait_ready()


class Neighbours:
    """Two clients that stream again and again, and notice when a stream differs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(body,)) for body in (FREE, BOUND)]
        self.alone = [self._stream(body) for body in (FREE, BOUND)]
        self.seen: list[tuple[str, str]] = []

    def __enter__(self) -> "Neighbours":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, body: dict[str, Any]) -> None:
        while not self._is_over.is_set():
            self.seen.append(self._stream(body))

    def _stream(self, body: dict[str, Any]) -> tuple[str, str]:
        """The text and the finish reason."""
        answer = httpx.post(f"{self._url}/v1/completions", json=body, timeout=300)
        choices = [event["choices"][0] for event in events_of(answer.text)]
        return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]


def events_of(stream: str) -> list[Any]:
    lines = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def errors_of(answer: httpx.Response) -> list[Any]:
    """The errors of an answer, which is an error or a stream."""
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, answer.text
        return [answer.json()["error"]]
    return [event["error"] for event in events_of(answer.text) if "error" in event]


def test_each_gets_one_error_and_neighbours_stay_identical(server: Serving) -> None:
    before = {name: child.pid for name, child in server.children().items()}
    with Neighbours(server.url) as neighbours, httpx.Client(base_url=server.url) as http:
        for name, fields in (HOSTILE | ANSWERED).items():
            content = json.dumps({**BODY, **fields})  # with escapes, so that any text is sent
            answer = http.post("/v1/completions", content=content, timeout=300)
            expected = 1 if name in HOSTILE else 0
            assert len(errors_of(answer)) == expected, (name, answer.text[:500])
            assert answer.text.count("[DONE]") <= 1 - expected, name
        # Deeper than a client's JSON library writes.
        raw = '{"prompt": "a", "guided_json": ' + nested('{"items":', "{}", "}") + "}"
        assert len(errors_of(http.post("/v1/completions", content=raw, timeout=300))) == 1
    assert len(neighbours.seen) >= 2
    assert all(stream in neighbours.alone for stream in neighbours.seen)
    assert {name: child.pid for name, child in server.children().items()} == before
