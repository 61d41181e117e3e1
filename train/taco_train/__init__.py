"""Distributed training on hosts with slow networks."""
