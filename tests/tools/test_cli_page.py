from tools.cli_page import PAGE, cli_page


def test_the_page_says_what_the_parsers_say() -> None:
    """Else: python -m tools.cli_page."""
    assert PAGE.read_text() == cli_page()
