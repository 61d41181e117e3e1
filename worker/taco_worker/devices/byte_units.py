"""Formats byte counts for log lines and errors."""


def gibibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
