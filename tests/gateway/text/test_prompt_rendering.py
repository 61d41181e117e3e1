"""Tokenizing conversations: special tokens of template and client, limits of templates."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_tokenizers import byte_fallback_bpe, byte_level_bpe, unigram, word_piece
from taco_gateway.text.chat_template.prompt_rendering import ChatPromptEncoder
from taco_gateway.text.chat_template.template_source import read_chat_template
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer, TokenizerSettings
from taco_proto.errors import ConfigurationError, InvalidParameterError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BACKEND = byte_level_bpe()
LLAMA = byte_fallback_bpe()
TOKENIZERS = [FastTokenizer(backend) for backend in (BACKEND, LLAMA, unigram(), word_piece())]
TEXT = st.lists(
    st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_", "start|>", "a", "é🦊", " ", "<think>"]),
    max_size=8,
).map("".join)


def prompter_of(
    template: str | None, backend: Any = BACKEND, option: str | None = None
) -> ChatPromptEncoder:
    settings = TokenizerSettings(bos_token="<s>", chat_template=template)
    return ChatPromptEncoder(FastTokenizer(backend, settings), option)


def test_a_checkpoint_may_have_a_template_for_tools() -> None:
    settings = TokenizerSettings(
        chat_template="plain:{{ messages[0].content }}",
        tool_template="{{ tools | length }} tools:{{ messages[0].content }}",
    )
    tools = [{"type": "function", "function": {"name": "f"}}]

    def rendered(option: str | None = None, **fields: Any) -> str:
        chat_encoder = ChatPromptEncoder(FastTokenizer(BACKEND, settings), option)
        try:
            return text_of(chat_encoder.encode(user("hi"), **fields))
        finally:
            chat_encoder.close()

    assert rendered() == "plain:hi"
    assert rendered(tools=tools) == "1 tools:hi"
    assert rendered(tools=tools, chat_template="{{ tools | length }}!") == "1!"
    assert rendered("{{ tools | length }}?", tools=tools) == "1?"


@pytest.fixture(scope="module")
def chatml() -> Iterator[ChatPromptEncoder]:
    chat_encoder = prompter_of(CHATML)
    yield chat_encoder
    chat_encoder.close()


@pytest.fixture
def any_template() -> Iterator[ChatPromptEncoder]:
    """For tests with their own templates."""
    chat_encoder = prompter_of(CHATML)
    yield chat_encoder
    chat_encoder.close()


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def text_of(ids: list[int]) -> str:
    return BACKEND.decode(ids, skip_special_tokens=False)


def test_a_prompt_is_what_the_whole_text_encodes_to(chatml: ChatPromptEncoder) -> None:
    ids = chatml.encode(user("Hello, how are you?"))
    text = "<|im_start|>user\nHello, how are you?<|im_end|>\n<|im_start|>assistant\n"
    assert ids == BACKEND.encode(text).ids


@given(content=TEXT)
def test_special_tokens_in_messages_stay_plain_text(
    chatml: ChatPromptEncoder, content: str
) -> None:
    ids = chatml.encode(user(content))
    specials = [BACKEND.id_to_token(i) for i in ids if i in (0, 1, 2)]
    assert specials == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
    assert text_of(ids) == (f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["level", "fallback", "unigram", "words"])
@given(content=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_plain_text_is_encoded_unchanged(tokenizer: FastTokenizer, content: str) -> None:
    assert tokenizer.encode_parts([content]) == tokenizer.encode(content, add_special_tokens=False)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["level", "fallback", "unigram", "words"])
def test_a_special_token_is_exact_among_plain_text_that_spells_it(tokenizer: FastTokenizer) -> None:
    for text, token_id in tokenizer.special_tokens.items():
        ids = tokenizer.encode_parts(["the ", token_id, f"the {text} end{text}"])
        assert ids.count(token_id) == 1 or "unk" in text.lower()
    if tokenizer is TOKENIZERS[0]:
        assert tokenizer.decode(ids) == "the the <|im_end|> end<|im_end|>"


def test_the_template_may_build_special_tokens_from_the_role(
    any_template: ChatPromptEncoder,
) -> None:
    ids = any_template.encode(
        [{"role": "im_start", "content": "<|im_end|>"}],
        chat_template="{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}",
    )
    assert ids[0] == BACKEND.token_to_id("<|im_start|>")
    assert BACKEND.token_to_id("<|im_end|>") not in ids


def test_nested_strings_are_plain_text_too(any_template: ChatPromptEncoder) -> None:
    call = {"function": {"name": "<|im_end|>", "arguments": {"x": ["<|im_end|>"]}}}
    ids = any_template.encode(
        [{"role": "assistant", "content": None, "tool_calls": [call]}],
        chat_template="{{ messages[0].tool_calls | tojson }}<|im_end|>",
    )
    assert ids.count(BACKEND.encode("<|im_end|>").ids[0]) == 1


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"x": 1}', '{"x": 1}'), ({"x": 1}, '{"x": 1}'), ("", "{}"), (" ", "{}"), ("{x", '"{x"')],
)
def test_templates_get_the_document_of_a_calls_arguments(
    any_template: ChatPromptEncoder, arguments: Any, shown: str
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    ids = any_template.encode(
        [{"role": "assistant", "content": None, "tool_calls": [call]}],
        chat_template="{{ messages[0].content + messages[0].tool_calls[0].function.arguments|tojson"
        " }}",
    )
    assert text_of(ids) == shown
    assert call["function"]["arguments"] == arguments  # type: ignore[index]


@pytest.mark.parametrize(
    "expression",
    [
        "x | tojson",
        "x | tojson(ensure_ascii=True)",
        "x | urlencode",
        "x | upper | lower",
        "[x]",
        "{x: x}",
        "x.split('|')",
    ],
)
def test_filters_of_a_template_keep_special_tokens_plain_text(
    any_template: ChatPromptEncoder, expression: str
) -> None:
    ids = any_template.encode(
        user("é <|im_end|>"),
        chat_template=f"{{% set x = messages[0].content %}}{{{{ {expression} }}}}",
    )
    assert BACKEND.token_to_id("<|im_end|>") not in ids
    assert "<|im_end|>" in text_of(ids)
    assert not re.search(r"\d{10}", text_of(ids))


SPLIT = [
    ([{"type": "text", "text": "x<|im_"}, {"type": "text", "text": "end|>y"}], []),
    ([{"type": "text", "text": text} for text in "<|im_end|>"], []),
    ([{"type": "text", "text": "<|im_end|><"}, {"type": "text", "text": "|im_end|>"}], []),
    ([], ["f<|im_", "end|>"]),
]


@pytest.mark.parametrize(("parts", "call"), SPLIT)
def test_texts_side_by_side_form_no_special_token(
    any_template: ChatPromptEncoder, parts: list[Any], call: list[str]
) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": parts}
    if call:
        message["tool_calls"] = [{"function": {"name": call[0], "arguments": call[1]}}]
    ids = any_template.encode(
        [message],
        chat_template="{% for m in messages %}{% for part in m.content %}{{ part.text }}"
        "{% endfor %}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}"
        "{% endfor %}{% endfor %}<|im_end|>",
    )
    assert [i for i in ids if i == BACKEND.token_to_id("<|im_end|>")] == ids[-1:]
    assert text_of(ids) == "".join([*(part["text"] for part in parts), *call, "<|im_end|>"])


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "type": "<|im_end|>"}},
        {"type": "function", "function": {"name": "f"}, "role": "<|im_end|>"},
        {"type": "function", "function": {"name": "f", "returns": {"type": "<|im_end|>"}}},
    ],
)
def test_special_tokens_in_tools_stay_plain_text(
    any_template: ChatPromptEncoder, tool: dict[str, Any]
) -> None:
    ids = any_template.encode(user("hi"), chat_template="{{ tools | tojson }}", tools=[tool])
    assert BACKEND.token_to_id("<|im_end|>") not in ids
    assert text_of(ids) == json.dumps([tool])


@pytest.mark.parametrize("num_levels", [900, 10**5])
def test_messages_that_are_nested_too_deeply(
    any_template: ChatPromptEncoder, num_levels: int
) -> None:
    arguments = '{"a":' * num_levels + "1" + "}" * num_levels
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(InvalidParameterError, match="nested too deeply"):
        any_template.encode(
            [{"role": "assistant", "content": None, "tool_calls": [call]}],
            chat_template="{{ messages[0].tool_calls | length }}",
        )


@pytest.mark.parametrize("expression", ["'<' + {} + '>'", "'<' ~ {} ~ '>'", "'<%s>' | format({})"])
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"x":1,  "é": "\\u00e9"}', '{"x":1,  "é": "\\u00e9"}'),
        (' {"x": "<|im_end|>"}\n', '{"x": "<|im_end|>"}'),
        ({"x": "é"}, '{"x": "é"}'),
        ("", "{}"),
        ("{x", "{x"),
        ("[1]", "[1]"),
        ("null", "null"),
        ('"s"', '"s"'),
    ],
)
def test_templates_may_join_a_calls_arguments_to_texts(
    any_template: ChatPromptEncoder, expression: str, arguments: Any, shown: str
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    joined = expression.format("messages[0].tool_calls[0].function.arguments")
    ids = any_template.encode(
        [{"role": "assistant", "content": None, "tool_calls": [call]}],
        chat_template=f"{{{{ {joined} }}}}",
    )
    assert BACKEND.encode("<|im_end|>").ids[0] not in ids
    assert text_of(ids) == f"<{shown}>"


def test_other_uses_of_a_calls_arguments(any_template: ChatPromptEncoder) -> None:
    call = {"function": {"name": "f", "arguments": '{"x":  1}'}}
    template = (
        "{% set a = messages[0].tool_calls[0].function.arguments %}{{ a is mapping }} "
        "{{ a is string }} {{ a.x }} {{ a['x'] }} {{ a }} {{ a | tojson }} {{ a | length }}"
        "{% for name, value in a.items() %} {{ name }}={{ value }}{% endfor %}"
    )
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    ids = any_template.encode([message], chat_template=template)
    assert text_of(ids) == 'True False 1 1 {"x":  1} {"x": 1} 1 x=1'
    with pytest.raises(InvalidParameterError, match="unsupported operand"):
        any_template.encode([message], chat_template=template + "{{ a + 1 }}")


@pytest.mark.parametrize(
    ("field", "test", "shown"),
    [
        ("m.content", "none", "None"),
        ("m['content']", "not none", "None"),
        ("m.content", "string", ""),
        ("m.tool_calls", "none", ""),
    ],
)
@pytest.mark.parametrize("content", [None, "", "text"])
def test_content_beside_calls_is_none_where_the_template_tests_it(
    any_template: ChatPromptEncoder, content: str | None, field: str, test: str, shown: str
) -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    template = (
        f"{{% for m in messages %}}{{{{ m.content }}}}{{% if {field} is {test} and m.tool_calls %}}"
        "{% endif %},{% endfor %}"
    )
    ids = any_template.encode(
        [
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "assistant", "content": content},
        ],
        chat_template=template,
    )
    assert text_of(ids) == f"{content or shown},{content or ''},"


@pytest.mark.parametrize(
    "arguments", ['{"type": "<|im_end|>"}', '{"role": ["<|im_end|>"]}', '{"<|im_end|>": 1}']
)
def test_special_tokens_in_arguments_stay_plain_text(
    any_template: ChatPromptEncoder, arguments: str
) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    ids = any_template.encode(
        [{"role": "assistant", "content": None, "tool_calls": [call]}],
        chat_template="{{ messages[0].tool_calls[0].function.arguments|tojson }}",
    )
    assert BACKEND.encode("<|im_end|>").ids[0] not in ids
    assert text_of(ids) == arguments


@pytest.mark.parametrize("content", [None, "text"])
def test_reasoning_is_the_thinking_that_a_template_reads(
    any_template: ChatPromptEncoder, content: str | None
) -> None:
    """The template of gpt-oss reads it there, and raises an error if calls have content too."""
    call = {"function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": content, "reasoning_content": "why"}
    template = (
        "{% for m in messages %}{{ m.thinking }}|{{ m.content }}"
        "{% if m.tool_calls %}!{% endif %},{% endfor %}"
    )
    messages: list[dict[str, Any]] = [message, {**message, "tool_calls": [call]}]
    shown = any_template.encode(messages, chat_template=template)
    assert text_of(shown) == f"why|{content or ''},why|!,"
    both = template.replace("m.thinking", "m.reasoning_content ~ m.thinking")
    kept = any_template.encode([{**message, "tool_calls": [call]}], chat_template=both)
    assert text_of(kept) == f"why|{content or ''}!,"


@pytest.mark.parametrize("none", [{}, {"tool_calls": []}, {"tool_calls": None}])
def test_no_calls_are_no_field(any_template: ChatPromptEncoder, none: dict[str, Any]) -> None:
    ids = any_template.encode(
        [{"role": "assistant", "content": "a", **none}],
        chat_template="{{ 'calls' if 'tool_calls' in messages[0] else messages[0].content }}",
    )
    assert text_of(ids) == "a"


@pytest.mark.parametrize(
    ("template", "role"),
    [
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "system"),
        ("{% for m in messages %}{% if m.role in ['developer'] %}d{% endif %}{% endfor %}", "d"),
        ("{% if messages[0]['role'] == 'system' %}s{% endif %}", "s"),
    ],
)
def test_developers_are_the_system_of_templates_that_do_not_know_them(
    any_template: ChatPromptEncoder, template: str, role: str
) -> None:
    messages = [{"role": "developer", "content": "a"}]
    assert text_of(any_template.encode(messages, chat_template=template)) == role


# ------------------------------------------------------------ BOS, continuing, content


def test_bos_comes_once(caplog: pytest.LogCaptureFixture) -> None:
    (bos,) = FastTokenizer(LLAMA).prefix_token_ids()
    with_bos = prompter_of("{{ bos_token }}{{ messages[0].content }}", LLAMA)
    without = prompter_of("{{ messages[0].content }}", LLAMA)
    with caplog.at_level(logging.WARNING):
        plain = prompter_of(None, LLAMA)
    assert "no chat template" in caplog.text
    for chat_encoder, given_, count in [
        (with_bos, None, 1),
        (with_bos, True, 1),
        (without, None, 0),
        (without, True, 1),
        (plain, None, 1),
        (plain, False, 0),
    ]:
        ids = chat_encoder.encode(user("hi"), add_special_tokens=given_)
        assert ids.count(bos) == count == ids[:1].count(bos)
    assert LLAMA.decode(plain.encode(user("hi"))) == "user: hi\nassistant:"
    for chat_encoder in (with_bos, without, plain):
        chat_encoder.close()


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        (CHATML, "one two ", "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\none two "),
        (
            CHATML.replace("message.content", "message.content | trim"),
            " one ",
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\none",
        ),
    ],
)
def test_the_final_message_can_be_continued(
    any_template: ChatPromptEncoder, template: str, content: str, expected: str
) -> None:
    ids = any_template.encode(
        [*user("q"), {"role": "assistant", "content": content}],
        add_generation_prompt=False,
        continue_final_message=True,
        chat_template=template,
    )
    assert text_of(ids) == expected


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
LOOP = "{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}"
BOTH = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
)
ALIAS = (
    "{% for m in messages %}{% set c = m.content %}{% for p in c %}[{{ p.text }}]{% endfor %}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        ("{{ messages[0].content }}", PARTS, "one\ntwo"),
        (LOOP, PARTS, "[one][two]"),
        (LOOP, "one", "[one]"),
        (BOTH, PARTS, "[one][two]"),
        (BOTH, "one", "one"),
        (ALIAS, "one", "[one]"),
    ],
)
def test_content_comes_in_the_form_that_the_template_reads(
    any_template: ChatPromptEncoder, template: str, content: Any, expected: str
) -> None:
    assert text_of(any_template.encode(user(content), chat_template=template)) == expected


def test_hugging_faces_extras(any_template: ChatPromptEncoder) -> None:
    template = (
        "{%- for m in messages %}\n  {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m.content | tojson }}{% endgeneration %}\n{% endfor %}"
        "{{ strftime_now('%Y') | length }}{{ namespace(x=1).x }}"
    )
    ids = any_template.encode([*user("é<"), *user("x")], chat_template=template)
    assert text_of(ids) == '"é<"41'


# ------------------------------------------------------------ templates that misbehave


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(10**9) %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ 'a' | center(10**10) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(9999) %}{% for b in range(999) %}{{ 'a' * 99 }}{% endfor %}{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no such role') }}",
        "{{ messages[0].nothing.at_all }}",
        "{{ unclosed",
    ],
)
def test_a_harmful_template_is_an_error_of_the_request(
    any_template: ChatPromptEncoder, template: str
) -> None:
    with pytest.raises(InvalidParameterError) as raised:
        any_template.encode(user("x"), chat_template=template)
    assert "/" not in str(raised.value).replace("'/etc/passwd'", "")
    assert text_of(any_template.encode(user("x"))).startswith("<|im_start|>user\nx")


def test_a_templates_own_message_reaches_the_client(any_template: ChatPromptEncoder) -> None:
    with pytest.raises(InvalidParameterError, match="no such role"):
        any_template.encode(user("x"), chat_template="{{ raise_exception('no such role') }}")


@pytest.mark.parametrize(
    ("messages", "options", "param"),
    [
        ([], {}, "messages"),
        (user([{"type": "image_url"}]), {}, "messages"),
        (user(b"x"), {}, "messages"),
        (user("\ud800"), {}, "messages"),
        (user("x"), {"template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (user("x"), {"template_kwargs": {"unknown": 1}}, "chat_template_kwargs"),
        (user("x"), {"continue_final_message": True}, "continue_final_message"),
        (
            user([]),
            {"continue_final_message": True, "add_generation_prompt": False},
            "continue_final_message",
        ),
    ],
)
def test_bad_conversations_name_the_parameter(
    chatml: ChatPromptEncoder, messages: Any, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidParameterError) as raised:
        chatml.encode(messages, **options)
    assert raised.value.param == param


def test_variables_that_the_template_reads_may_be_given(any_template: ChatPromptEncoder) -> None:
    ids = any_template.encode(
        user("x"),
        chat_template="{% if enable_thinking %}think{% endif %}",
        template_kwargs={"enable_thinking": True},
    )
    assert text_of(ids) == "think"


def test_the_operators_template_is_a_file_or_a_line(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages[0].content }}\n!")
    for option in (str(file), "{{ messages[0].content }}\\n!"):
        chat_encoder = prompter_of(CHATML, option=option)
        assert text_of(chat_encoder.encode(user("x"))) == "x\n!"
        chat_encoder.close()
    with pytest.raises(ConfigurationError, match=r"nothing\.jinja"):
        read_chat_template(str(tmp_path / "nothing.jinja"))
    with pytest.raises(ConfigurationError):
        prompter_of(CHATML, option="{{ unclosed")


def test_warm_up_starts_a_process(caplog: pytest.LogCaptureFixture) -> None:
    chat_encoder = prompter_of(CHATML)
    chat_encoder.warm_up()
    assert len(chat_encoder._pool._processes._idle) == 1
    chat_encoder.close()
    broken = prompter_of("{% for %}")
    broken.warm_up()
    assert "chat requests will be rejected" in caplog.text
    broken.close()


def test_a_killed_template_process_fails_no_conversation() -> None:
    chat_encoder = prompter_of(CHATML)
    first = chat_encoder.encode(user("x"))
    (process,) = chat_encoder._pool._processes._idle
    process._process.kill()  # as the kernel does when the machine's memory is full
    process._process.wait()
    assert chat_encoder.encode(user("x")) == first
    chat_encoder.close()
