"""Sampling: penalties, filters, draws and log probabilities."""
