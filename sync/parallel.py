"""Work over many tensors on a thread pool, with a progress bar on a terminal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MOST_THREADS = 32
"""Beyond this, memory bandwidth is the limit."""


def run_parallel(
    threads: int | None,
    items: Sequence[_Item],
    work: Callable[[_Item], _Result],
    done: Callable[[_Item], None] = lambda item: None,
) -> list[_Result]:
    """`work` over `items` on `threads` threads (None: one a usable CPU); results in order.

    `done` is called in this thread, in order. After a failure, what has not begun is dropped.
    """
    pool = ThreadPoolExecutor(threads or min(_MOST_THREADS, len(os.sched_getaffinity(0))))
    try:
        results = []
        for item, result in zip(items, pool.map(work, items), strict=True):
            results.append(result)
            done(item)
        return results
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def byte_progress(what: str, total_bytes: int, shown: bool | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error; yields what advances it by a number of bytes. `shown=None`: on a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    hidden = not (console.is_terminal if shown is None else shown)
    with Progress(*columns, console=console, disable=hidden) as progress:
        task = progress.add_task(what, total=total_bytes)
        yield lambda done_bytes: progress.advance(task, done_bytes)
