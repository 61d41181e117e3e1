import json
import xml.etree.ElementTree as ElementTree

from bench.pictures.terminal_picture import PICTURE, RECORDING, Piece, picture, pieces


def contents(events: list[tuple[float, str]], columns: int = 20) -> list[tuple[int, int, str]]:
    """What stays: row, column and text."""
    stays = [piece for piece in pieces(events, columns) if piece.hidden is None]
    return sorted((piece.row, piece.column, piece.content) for piece in stays)


def test_the_committed_picture_shows_the_recording() -> None:
    """Else: python -m bench.pictures.terminal_picture."""
    assert PICTURE.read_text() == picture(json.loads(RECORDING.read_text()))


def test_the_picture_is_well_formed_small_and_runs_no_script() -> None:
    drawn = PICTURE.read_text()
    tags = {node.tag.rpartition("}")[2] for node in ElementTree.fromstring(drawn).iter()}
    assert tags == {"svg", "title", "style", "rect", "text"}
    assert len(drawn) < 200_000


def test_the_recording_holds_all_three_terminals_in_order() -> None:
    events = json.loads(RECORDING.read_text())["events"]
    assert {terminal for _, terminal, _ in events} == {"server", "client", "other"}
    seconds = [second for second, _, _ in events]
    assert seconds == sorted(seconds)


def test_output_is_shown_where_the_cursor_is() -> None:
    assert contents([(0.0, "$ "), (1.0, "ls"), (2.0, "\r\na  b\r\n")]) == [
        (0, 0, "$"),
        (0, 2, "ls"),
        (1, 0, "a"),
        (1, 3, "b"),
    ]


def test_a_long_line_wraps_only_when_more_follows() -> None:
    assert contents([(0.0, "12345\r\n67890x")], columns=5) == [
        (0, 0, "12345"),
        (1, 0, "67890"),
        (2, 0, "x"),
    ]


def test_a_progress_bar_is_replaced_by_what_overwrites_it() -> None:
    shown = pieces([(1.0, "50%"), (2.0, "\r99%"), (3.0, "\r   \r"), (4.0, "ready")], 20)
    assert Piece(0, 0, "50%", 1.0, 2.0) in shown
    assert Piece(0, 0, "99%", 2.0, 3.0) in shown
    assert [piece for piece in shown if piece.hidden is None] == [Piece(0, 0, "ready", 4.0)]


def test_the_cursor_moves_up_to_another_bar() -> None:
    assert contents([(0.0, "one\r\ntwo\x1b[A\rONE")]) == [(0, 0, "ONE"), (1, 0, "two")]


def test_the_names_of_animations_are_not_overridden() -> None:
    """The shorthand resets the name, so its selector must be the weaker one: an element."""
    drawn = PICTURE.read_text()
    assert "\ntext{animation:" in drawn
    assert drawn.count("{animation:") == 1
    assert drawn.count("{animation-name:") == drawn.count("@keyframes ") > 100
