"""Progress of downloads from the Hugging Face hub."""

from __future__ import annotations

import threading
from typing import Any

from tqdm.asyncio import tqdm_asyncio

from taco_common.progress import Progress


def progress_bars(progress: Progress) -> type[tqdm_asyncio[Any]]:
    """A class for the argument `tqdm_class` of `snapshot_download` that reports to `progress`.

    The hub's client has one bar for files and several for received and written bytes, and updates
    them from many threads. The bar for files is ignored. The total grows when the download of
    another file begins; cached files do not count.
    """
    bars: list[_ByteBar] = []
    lock = threading.RLock()

    class _ByteBar(tqdm_asyncio):
        """A tqdm bar that counts and shows nothing."""

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
                # The client counts received bytes twice: on arrival, and when they are on disk.
                done = max((int(bar.n) for bar in bars), default=0)
                total = max((int(bar.total or 0) for bar in bars), default=0)
                if total:
                    progress.update(min(done, total), total)

    return _ByteBar
