"""Ranks agree on the order of named collectives, which they submit in different orders."""
