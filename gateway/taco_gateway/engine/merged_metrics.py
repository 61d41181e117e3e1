"""Merges the metrics pages of several schedulers into one page."""

from collections.abc import Mapping


def merge_metrics(pages: Mapping[str, bytes]) -> bytes:
    """Merges pages in Prometheus' exposition format. With several pages, each sample gets a label
    `scheduler`.

    Args:
        pages: by the scheduler's address.
    """
    if len(pages) == 1:
        return next(iter(pages.values()))
    families: dict[bytes, tuple[dict[bytes, None], list[bytes]]] = {}
    for address, page in pages.items():
        label = b'scheduler="%s"' % address.encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        heads: dict[bytes, None] = {}
        samples: list[bytes] = []
        for line in page.splitlines(keepends=True):
            if line.startswith((b"# HELP ", b"# TYPE ")):
                heads, samples = families.setdefault(line.split()[2], ({}, []))
                heads[line] = None  # the same line of another page is replaced
            elif line.strip():
                samples.append(_labelled(line, label))
    parts = [line for heads, samples in families.values() for line in (*heads, *samples)]
    return b"".join(parts)


def _labelled(sample: bytes, label: bytes) -> bytes:
    name, brace, rest = sample.partition(b"{")
    if brace:
        return name + b"{" + label + b"," + rest
    name, _, value = sample.partition(b" ")
    return name + b"{" + label + b"} " + value
