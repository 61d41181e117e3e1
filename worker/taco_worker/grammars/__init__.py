"""Constrained generation: compiles grammars and computes which tokens may come next."""
