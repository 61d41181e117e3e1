"""Layers of the torch decoder."""
