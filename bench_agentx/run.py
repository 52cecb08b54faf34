"""One measured run of a workload at one concurrency, and the files it leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_agentx.client import Client
from bench_agentx.metrics import cache_metrics, request_metrics
from bench_agentx.overhead import OverheadMonitor
from bench_agentx.policy import PolicyUpdater, policy_summary
from bench_agentx.progress import Display
from bench_agentx.prompts import PromptBuilder
from bench_agentx.replay import Replay, Rules
from bench_agentx.rows import Row, write_rows
from bench_agentx.validity import deviations
from bench_agentx.workload import Options, Workload


@dataclass(frozen=True, slots=True)
class Run:
    """``rows``: all requests, the warm-up's too. ``summary``: JSON values, see ``metrics``."""

    rows: list[Row]
    summary: dict[str, Any]

    @property
    def completed(self) -> bool:
        """Whether the run ended as planned, rather than by a lost server, a failed warm-up or the user."""
        return self.summary["ended_by"] in ("duration", "sessions")


async def measure(
    options: Options,
    workload: Workload,
    concurrency: int,
    series: str,
    display: Display,
    repeat: int | None = None,
) -> Run:
    """Replay at one concurrency. Whatever the server does, the run ends and is reported.

    ``series`` names what is measured (a server, a setting): runs of one series are one line of a plot, and
    several of one concurrency, told apart by ``repeat``, one point of it.
    """
    label = f"{series}-c{concurrency}" + ("" if repeat is None else f"-r{repeat}")
    rules = Rules(
        concurrency=concurrency,
        duration_s=options.duration_s,
        seed=options.seed,
        order=options.order,
        start_ratio=options.start_ratio,
        max_sessions=options.max_sessions,
        delay_scale=options.delay_scale,
        grace_period_s=options.grace_period_s,
    )
    prompts = PromptBuilder(workload.vocabulary, options.seed, uuid.uuid4().hex, options.cache_bust)
    started_at = time.time()
    async with Client(workload.endpoint, options.stall_timeout_s) as client:
        replay = Replay(rules, workload.sessions, client, prompts, workload.sent)
        overhead = OverheadMonitor(replay.measuring)
        updater = PolicyUpdater(client, replay, options.policy_sync_url, options.policy_sync_every_s)
        with _stopped_by_ctrl_c(replay), display.showing(replay, label), _little_garbage_collection():
            beside = [asyncio.create_task(task) for task in (updater.run(), overhead.run())]
            await replay.run()
            for task in beside:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    measured = [row for row in replay.rows if row.phase == "profiling"]
    reasons = deviations(options, workload, measured, replay.ended_by)
    summary = {
        "series": series,
        "label": label,
        "concurrency": concurrency,
        "model": workload.endpoint.model,
        "ended_by": replay.ended_by,
        "submission_valid": not reasons,
        "submission_invalid_reasons": reasons,
        **request_metrics(measured, options.devices),
        **cache_metrics(measured, replay.counters),
        "warmup_request_count": len(replay.rows) - len(measured),
        "sessions_dropped": workload.dropped,
        "policy": policy_summary(measured, updater.updates),
        "client": dataclasses.asdict(overhead.result()),
        "started_at_unix_s": started_at,
        "options": {
            **options.public(),
            "endpoint_type": workload.endpoint.type,
            "context_scale": workload.context_scale,
        },
    }
    return Run(replay.rows, summary)


def write_run(directory: Path, run: Run) -> Path:
    """``<label>.parquet`` (rows and summary) and ``<label>.json`` (summary); the Parquet file's path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{run.summary['label']}.parquet"
    write_rows(path, run.rows, run.summary)
    path.with_suffix(".json").write_text(json.dumps(run.summary, indent=2) + "\n")
    return path


@contextmanager
def _little_garbage_collection() -> Iterator[None]:
    """A full collection walks every session (100 ms seen) while streams wait: what is there already is exempt."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _stopped_by_ctrl_c(replay: Replay) -> Iterator[None]:
    """Ctrl-C ends the run early, with its report; a second one does not wait for what is under way."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, replay.interrupt)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
