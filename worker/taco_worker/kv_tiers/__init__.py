"""KV tiers on the worker: blocks in host memory and on disk."""
