import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taco_gateway.api_errors import ApiError
from taco_gateway.http.strict_json import parse_json_object

BAD_BODIES = {
    "empty": b"",
    "blank": b" \n",
    "cut short": b'{"prompt": "x"',
    "too deep": b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "too deep and cut short": b'{"a":' * 10_000,
    "duplicate key": b'{"n": 1, "n": 2}',
    "nested duplicate key": b'{"a": {"n": 1, "n": 2}}',
    "NaN": b'{"temperature": NaN}',
    "infinity": b'{"temperature": -Infinity}',
    "float out of range": b'{"temperature": 1e400}',
    "integer of 5,000 digits": b'{"n": ' + b"9" * 5000 + b"}",
    "bad UTF-8": b'{"prompt": "\xff\xfe"}',
    "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "raw surrogate": b'{"prompt": "\xed\xa0\x80"}',
    "lone high surrogate": rb'{"prompt": "\ud800"}',
    "lone low surrogate": rb'{"prompt": "\uDC00 x"}',
    "surrogate in a key": rb'{"\uDFFF": 1}',
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "trailing bytes": b"{} {}",
    "single quotes": b"{'a': 1}",
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_refuses(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json_object(BAD_BODIES[name])
    assert caught.value.status == 400
    assert "sys." not in caught.value.message
    assert len(caught.value.message) < 200


def test_accepts_surrogate_pairs() -> None:
    assert parse_json_object(rb'{"prompt": "\ud83d\ude00"}') == {"prompt": "😀"}


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), _JSON, max_size=3), st.booleans())
def test_reads_what_json_writes(value: dict[str, object], ascii_only: bool) -> None:
    assert parse_json_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value
