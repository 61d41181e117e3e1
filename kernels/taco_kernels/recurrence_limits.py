"""The sizes that the CPU kernels of convolutions and recurrences support. Free of torch."""

# csrc/recurrence/convolve.h and csrc/recurrence/state_slice.h
MAX_WIDTH = 8
MAX_KEY_DIM = 256


def check_width(width: int) -> None:
    """Raises ValueError if the kernels have no convolution of that width."""
    if not 2 <= width <= MAX_WIDTH:
        raise ValueError(f"convolutions of 2 to {MAX_WIDTH} tokens are supported, not {width}")


def check_key_dim(key_dim: int) -> None:
    """Raises ValueError if the kernels have no recurrence with keys of that size."""
    if key_dim > MAX_KEY_DIM:
        raise ValueError(f"keys of a recurrence have {MAX_KEY_DIM} columns at most, not {key_dim}")
