"""Progress of downloads from the Hugging Face hub."""

from __future__ import annotations

import threading
from typing import Any

from tqdm.asyncio import tqdm_asyncio

from taco_common.progress import Progress


def progress_bars(progress: Progress) -> type[tqdm_asyncio[Any]]:
    """A class for the argument `tqdm_class` of `snapshot_download` that reports to `progress`.

    The hub's client makes a bar of files, and bars of the bytes that it has received and written,
    and updates them from many threads. The bar of files is ignored. The total grows whenever the
    download of another file begins; files that are in the cache count nothing.
    """
    bars: list[_ByteBar] = []
    lock = threading.RLock()

    class _ByteBar(tqdm_asyncio):
        """Counts like a bar of tqdm and shows nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})
            if kwargs.get("unit") == "B":
                bars.append(self)

        def update(self, n: float | None = 1) -> None:
            with lock:
                self.n += n or 0
            self.refresh()

        def refresh(self, *args: Any, **kwargs: Any) -> None:
            with lock:
                # The client counts bytes that it has received twice: when they come, and when
                # they are on the disk.
                done = max((int(bar.n) for bar in bars), default=0)
                total = max((int(bar.total or 0) for bar in bars), default=0)
                if total:
                    progress.update(min(done, total), total)

    return _ByteBar
