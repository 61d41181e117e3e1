"""The lookahead cache and prompt lookup as drafters."""
