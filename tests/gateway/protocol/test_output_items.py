"""The output items of a response, while its answer is generated."""

from hypothesis import given
from hypothesis import strategies as st

from taco_gateway.protocol.responses_api.output_items import ChangeKind, ItemKind, OutputBuilder
from taco_gateway.text.output.output_processor import TextUpdate
from taco_gateway.text.response.response_delta import CallDelta, ResponseDelta

texts = st.text(max_size=3)
# Parts of answers in any order: parsers of plug-ins and messages for channels may write them.
parts = st.lists(st.sampled_from(["reasoning", "content", "call", "arguments"]), max_size=12)


def update_with(part: str, text: str, num_calls: int) -> TextUpdate:
    delta = ResponseDelta()
    match part:
        case "reasoning":
            delta.reasoning = text
        case "content":
            delta.content = text
        case "call":
            delta.calls = [CallDelta(num_calls, f"id{num_calls}", f"f{num_calls}", text)]
        case "arguments":
            delta.calls = [CallDelta(num_calls - 1, arguments=text)]
    return TextUpdate(0, parsed=delta)


@given(parts, st.data(), st.booleans(), st.booleans())
def test_changes_add_up_to_the_items(
    chosen: list[str], data: st.DataObject, gives_reasoning: bool, is_complete: bool
) -> None:
    builder = OutputBuilder(gives_reasoning=gives_reasoning)
    changes, expected, num_calls, last = [], dict.fromkeys(ItemKind, ""), 0, ""
    for part in chosen:
        if part == "arguments" and last not in ("call", "arguments"):
            continue  # they follow the beginning of their call
        text = data.draw(texts)
        changes += builder.add(update_with(part, text, num_calls))
        num_calls += part == "call"
        kind = {"reasoning": ItemKind.REASONING, "content": ItemKind.MESSAGE}.get(part)
        if kind is not ItemKind.REASONING or gives_reasoning:
            expected[kind or ItemKind.FUNCTION_CALL] += text
        last = part
    changes += builder.end(is_complete=is_complete)

    open_index, found, num_items = None, dict[int, str](), 0
    for change in changes:
        match change.kind:
            case ChangeKind.ADDED:
                assert open_index is None, "the former item has not ended"
                assert change.item.index == num_items
                open_index, num_items = num_items, num_items + 1
            case ChangeKind.EXTENDED:
                assert change.item.index == open_index
                assert change.text
                found[open_index] = found.get(open_index, "") + change.text
            case ChangeKind.DONE:
                assert change.item.index == open_index
                open_index = None
    assert open_index is None
    assert [item.text for item in builder.items] == [found.get(k, "") for k in range(num_items)]
    for kind, text in expected.items():
        assert "".join(item.text for item in builder.items if item.kind is kind) == text
    calls = [item for item in builder.items if item.kind is ItemKind.FUNCTION_CALL]
    assert [(c.call_id, c.name) for c in calls] == [(f"id{k}", f"f{k}") for k in range(num_calls)]
    assert len({item.id for item in builder.items}) == num_items
    assert all(item.id.startswith(f"{item.kind.value}_") for item in builder.items)
    *earlier, final = [item.status for item in builder.items]
    assert set(earlier) <= {"completed"}
    assert final == ("completed" if is_complete else "incomplete")


def test_an_answer_without_parts_is_an_empty_message() -> None:
    builder = OutputBuilder(gives_reasoning=True)
    assert builder.add(TextUpdate(0, finish_reason="stop")) == []
    kinds = [change.kind for change in builder.end(is_complete=True)]
    assert kinds == [ChangeKind.ADDED, ChangeKind.DONE]
    (item,) = builder.items
    assert (item.kind, item.text) == (ItemKind.MESSAGE, "")
