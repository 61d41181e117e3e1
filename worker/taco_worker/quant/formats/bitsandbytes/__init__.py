"""bitsandbytes: checkpoints of 4-bit blocks or int8 rows, and 4-bit blocks made at load."""
