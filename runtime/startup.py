"""From a loaded engine to a policy service: prove, record, let go of the disk copy, and set up following."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from runtime.admission import AdmissionGate
from runtime.checkpoint_source import ServedCheckpoint
from runtime.engine import VllmEngine
from runtime.kv_options import kv_policy
from runtime.metrics import SyncMetrics
from runtime.policy import PolicyService
from sync.coordinator import Coordinator, Observer
from sync.follower import Follower
from sync.layout import LayoutError
from sync.planner_client import PlannerClient
from sync.startup import ProvenEngine, prove_engine
from sync.stores.base import Store

logger = logging.getLogger("rollout.startup")
LEDGER_FILE = "ledger.parquet"


async def start_policy(
    async_llm: Any,
    checkpoint: ServedCheckpoint,
    store: Store | None,
    options: argparse.Namespace,
    directory: Path,
    observers: Sequence[Observer] = (),
) -> PolicyService:
    """Proves that engine memory equals `checkpoint` and returns the service that keeps it in step with `store`.

    Where the proof fails, the service refuses sync and says why; the disk copy stays and the server serves it.
    """
    gate = AdmissionGate(checkpoint.version)
    engine = VllmEngine(async_llm, gate)
    engine.update_policy = kv_policy(options.kv_on_update, options.kv_max_lag)
    await engine.pause()
    await engine.enter_policy(checkpoint.version)
    await engine.resume()
    try:
        with progress_bar() as bar:
            proven = await prove_engine(engine, checkpoint.path, checkpoint.version, bar.update_phase)
    except LayoutError as error:
        logger.error("sync is refused, the checkpoint stays on disk: %s", error)
        return PolicyService(checkpoint.version, store, refusal=str(error), engine=engine)
    freed_bytes = await asyncio.to_thread(checkpoint.release, delete_user_files=options.delete_checkpoint)
    _log_proof(proven, checkpoint, freed_bytes)
    proven.ledger.write(directory / LEDGER_FILE)
    startup = {
        "trace_ms": proven.trace_ms,
        "verify_ms": proven.verify_ms,
        "freed_bytes": freed_bytes,
        "model_bytes": proven.ledger.size_bytes,
    }
    if store is None:
        refusal = "started without --policy-store"
        return PolicyService(checkpoint.version, None, refusal=refusal, startup=startup, engine=engine)
    planner = PlannerClient(store.url, proven.layouts, options.policy_threads)
    await planner.ensure_started()
    coordinator = Coordinator(
        engine,
        planner,
        proven.ledger,
        ledger_path=directory / LEDGER_FILE,
        observers=[SyncMetrics(checkpoint.version), *observers],
    )
    service = PolicyService(checkpoint.version, store, coordinator, planner, startup=startup, engine=engine)
    if options.follow:
        service.follower = Follower(store, coordinator, interval_s=options.follow_interval, on_poisoned=service.poison)
    return service


def _log_proof(proven: ProvenEngine, checkpoint: ServedCheckpoint, freed_bytes: int) -> None:
    disposal = (
        f"{freed_bytes / 1e6:.1f} MB deleted from disk"
        if freed_bytes
        else f"{checkpoint.path} stays on disk (yours), its page cache is dropped"
    )
    logger.info(
        "engine memory equals version %d: %d tensors, %.1f MB, traced in %.0f ms, compared in %.0f ms; %s",
        checkpoint.version,
        len(proven.ledger.tensors),
        proven.ledger.size_bytes / 1e6,
        proven.trace_ms,
        proven.verify_ms,
        disposal,
    )


class progress_bar:
    """A progress bar on a terminal, a line every few seconds elsewhere."""

    LOG_INTERVAL_S = 5.0

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), transient=True
        )
        self._task = self._bar.add_task("verifying", total=None)
        self._logged_at = time.monotonic()

    def __enter__(self) -> progress_bar:
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, done: int, total: int) -> None:
        self.update_phase("fetching the anchor", done, total)

    def update_phase(self, phase: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=phase, completed=done, total=total or None)
        now = time.monotonic()
        if not self._bar.console.is_terminal and now - self._logged_at > self.LOG_INTERVAL_S:
            self._logged_at = now
            logger.info("%s: %.1f of %.1f MB", phase, done / 1e6, total / 1e6)
