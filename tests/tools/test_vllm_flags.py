import re

from tools.vllm_flags import PAGE, serve_parser, with_tables


def test_the_page_says_what_the_parser_says() -> None:
    """Else: python -m tools.vllm_flags."""
    assert PAGE.read_text() == with_tables(PAGE.read_text())


def test_every_flag_in_the_page_is_known_to_serve() -> None:
    known = {flag for action in serve_parser()._actions for flag in action.option_strings}
    named = set(re.findall(r"`(--[a-z0-9-]+)", PAGE.read_text()))
    assert len(named) > 60
    assert named - known == set()
