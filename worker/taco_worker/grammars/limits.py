"""Limits of the parser that follows a text."""

from llguidance import LLParserLimits

from taco_proto.grammars import MAX_ALTERNATIVES

# Of one mask. A step of all sequences waits for it: the library's defaults allow 15 to 20 ms.
_STEP_LEXER_FUEL = 200_000
_STEP_MAX_ITEMS = 50_000
_MAX_LEXER_STATES = 250_000


def parser_limits() -> LLParserLimits:
    """A sequence whose parser exceeds a limit ends with an error, alone."""
    return LLParserLimits(
        max_items_in_row=MAX_ALTERNATIVES,
        step_lexer_fuel=_STEP_LEXER_FUEL,
        step_max_items=_STEP_MAX_ITEMS,
        max_lexer_states=_MAX_LEXER_STATES,
        verbose_errors=False,  # errors would quote the client's text
    )
