"""Progress on a terminal while a run is under way; silent where standard error is not one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from bench_agentx.replay import Replay

_REFRESH_S = 0.25


class Display:
    """Bars on standard error, so that standard output stays for results."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self._quiet = quiet or not self.console.is_terminal

    @contextmanager
    def showing(self, replay: Replay, label: str) -> Iterator[None]:
        """Show a replay until the block ends."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f} s"),
            TextColumn("{task.fields[status]}"),
        )
        with Progress(*columns, console=self.console, disable=self._quiet) as bars:
            task = bars.add_task(label, total=replay.rules.duration_s, status="")
            refreshing = asyncio.create_task(_refresh(bars, task, replay, label))
            try:
                yield
            finally:
                refreshing.cancel()
                bars.update(task, status=_status(replay))


async def _refresh(bars: Progress, task: TaskID, replay: Replay, label: str) -> None:
    while True:
        progress = replay.progress
        elapsed_s = time.perf_counter() - progress.started_s if progress.phase == "profiling" else 0.0
        bars.update(
            task,
            completed=min(elapsed_s, replay.rules.duration_s),
            description=f"{label} ({progress.phase})",
            status=_status(replay),
        )
        await asyncio.sleep(_REFRESH_S)


def _status(replay: Replay) -> str:
    progress = replay.progress
    elapsed_s = max(time.perf_counter() - progress.started_s, 1e-9)
    errors = ", ".join(f"{count} {name}" for name, count in sorted(progress.errors.items())) or "no errors"
    return (
        f"{progress.in_flight} in flight, {progress.completed_requests} done, "
        f"{progress.output_tokens / elapsed_s:.0f} tok/s, {errors}"
    )
