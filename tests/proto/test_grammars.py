"""Grammars on the wire: the text travels once a stream, while both ends keep it."""

import pytest

from support.engine_driver import make_request
from taco_proto.convert import submit_from_pb, submit_to_pb
from taco_proto.convert_grammars import grammar_command_from_pb, grammar_command_to_pb
from taco_proto.grammars import Grammar, GrammarCommand, GrammarTable, RecentTable

A, B = Grammar.of("start: /a/"), Grammar.of("start: /b/")


def test_the_text_travels_once_a_stream() -> None:
    sent, received = GrammarTable(), GrammarTable()
    texts = []
    for grammar in (A, B, A, None, B):
        message = submit_to_pb(make_request(1, [5], grammar=grammar), 0.0, sent)
        texts.append(message.grammar_text)
        assert submit_from_pb(message, 0.0, received).grammar == grammar
    assert texts == [A.text, B.text, "", "", ""]


def test_both_ends_forget_the_same_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco_proto.grammars.MAX_KEPT_BYTES", 100)
    sent, received = GrammarTable(), GrammarTable()
    grammars = [Grammar.of(f"start: /{'x' * number}/") for number in range(40)]
    order = [(7 * i * i + i) % 40 for i in range(400)]
    num_texts = 0
    for number in order:
        message = submit_to_pb(make_request(1, [5], grammar=grammars[number]), 0.0, sent)
        num_texts += bool(message.grammar_text)
        assert submit_from_pb(message, 0.0, received).grammar == grammars[number]
    assert len(set(order)) < num_texts < len(order)


def test_a_missing_or_wrong_text_is_an_error() -> None:
    message = submit_to_pb(make_request(1, [5], grammar=A), 0.0, GrammarTable())
    message.grammar_text = ""
    with pytest.raises(ValueError, match="without its text"):
        submit_from_pb(message, 0.0, GrammarTable())
    message.grammar_text = B.text
    with pytest.raises(ValueError, match="does not have its hash"):
        submit_from_pb(message, 0.0, GrammarTable())


def test_commands_survive_the_wire() -> None:
    command = GrammarCommand((A, B), (b"x" * 16,))
    assert grammar_command_from_pb(grammar_command_to_pb(command)) == command


def test_a_value_beyond_the_limit_is_kept_alone() -> None:
    table: RecentTable[int] = RecentTable(10)
    table.put(b"a", 1, 6)
    table.put(b"b", 2, 6)
    assert (table.get(b"a"), table.get(b"b")) == (None, 2)
    table.put(b"c", 3, 60)
    assert (table.get(b"b"), table.pop(b"c"), table.pop(b"c")) == (None, 3, None)
