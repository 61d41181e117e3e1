"""Speculative decoding: drafters, verification choice and pauses."""
