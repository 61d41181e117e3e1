"""Runs a step: model, verification and sampling, and the output."""
