"""The coordinator: takes a replica from one policy version to the next, or leaves it exactly as it was.

Runs in the API process (asyncio). Owns the state, the served version and the ledger. Refuses to own how the engine
is paused or spoken to (`Engine`), how versions are noticed (`sync.follower`), and how anything is shown (`Observer`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum, unique
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, Protocol

from native import adler32_add
from sync.errors import PublicationError, StoreError
from sync.layout import LayoutError
from sync.ledger import Ledger
from sync.planner_client import PlannerClient

logger = logging.getLogger("rollout.sync")
POLL_INTERVAL_S = 0.002


@unique
class SyncState(Enum):
    """Where a sync is. Every change is logged once and observed."""

    IDLE = "idle"
    FETCHING = "fetching"
    STAGING = "staging"
    SEALED = "sealed"
    PAUSING = "pausing"
    COMMITTING = "committing"
    PUBLISHING = "publishing"
    FAILED = "failed"
    """The last sync was refused; the version before it is served unchanged."""
    POISONED = "poisoned"
    """A commit failed and could not be undone: weights may be mixed, nothing may be served any more."""


class SyncBusy(Exception):
    """Another sync is running."""


class EnginePoisoned(Exception):
    """Engine memory may hold a mix of two versions; the process must stop serving and exit non-zero."""


class Engine(Protocol):
    """What the coordinator needs of the engine."""

    async def collective(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of the worker extension on every rank; results in rank order."""

    async def pause(self) -> None:
        """Closes admission and freezes running requests. On return no step runs."""

    async def enter_policy(self, version: int) -> None:
        """While paused: makes `version` the one that tokens and KV from now on belong to."""

    async def resume(self) -> None:
        """Lets frozen and waiting requests go on."""


@dataclass(frozen=True)
class SyncReport:
    """One finished sync. Times are wall time in milliseconds unless said otherwise.

    `changed_elements` is None where an anchor was applied. `plan_bytes`: memory of the write plans of all ranks.

    `fetch_ms`, `decode_ms` and `map_ms` are added up over planner threads. `stage_ms`: from the start until every
    rank has sealed. `pause_ms`: from closing admission until running requests may go on; `drain_ms`, `commit_ms` and
    `publish_ms` are its parts. `live_ms`: from the request until the new version is live.
    """

    version: int
    previous_version: int
    changed_elements: int | None
    total_elements: int
    payload_bytes: int
    plan_bytes: int
    timings_ms: dict[str, float] = field(repr=False)

    @property
    def density(self) -> float | None:
        """Changed elements over all; None for an anchor, whose elements are all published."""
        return None if self.changed_elements is None else self.changed_elements / max(1, self.total_elements)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"density": self.density}


class Observer(Protocol):
    """Sees what happens; must return quickly."""

    def on_state(self, state: SyncState, version: int, previous_state_ms: float) -> None: ...

    def on_report(self, report: SyncReport) -> None: ...

    def on_failure(self, version: int, error: Exception) -> None: ...


class Coordinator:
    """Syncs one replica. `version` is what it serves; `ledger` answers for every byte of it."""

    def __init__(
        self,
        engine: Engine,
        planner: PlannerClient,
        ledger: Ledger,
        *,
        ledger_path: Path | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._engine = engine
        self._planner = planner
        self._ledger_path = ledger_path
        self._observers = tuple(observers)
        self._lock = asyncio.Lock()
        self._state_since = time.perf_counter()
        self.ledger = ledger
        self.state = SyncState.IDLE
        self.last_report: SyncReport | None = None
        self.last_error: str | None = None
        self.progress: dict[str, Any] = {}

    @property
    def version(self) -> int:
        return self.ledger.version

    @property
    def is_syncing(self) -> bool:
        return self._lock.locked()

    async def sync(self, target: int) -> SyncReport | None:
        """Takes the replica to policy version `target`; None if it is served already.

        Raises SyncBusy while another sync runs; PublicationError, StoreError, LayoutError, PlannerDied or RuntimeError
        where `target` was refused (state `failed`, the old version is served, not one byte of engine memory changed, or
        every byte changed back); EnginePoisoned where a commit could be neither finished nor undone.
        """
        if self._lock.locked():
            raise SyncBusy(f"a sync to version {self.progress.get('target')} is running")
        async with self._lock:
            if self.state is SyncState.POISONED:
                raise EnginePoisoned(self.last_error or "a former commit failed")
            if target == self.version:
                return None
            self.progress = {"target": target}
            try:
                report = await self._sync(target)
            except EnginePoisoned as error:
                self._fail(SyncState.POISONED, target, error)
                raise
            except asyncio.CancelledError:
                self._enter(SyncState.FAILED)
                raise
            except Exception as error:
                self._fail(SyncState.FAILED, target, error)
                raise
            self._enter(SyncState.IDLE)
            self.last_report, self.last_error = report, None
            for observer in self._observers:
                observer.on_report(report)
            logger.info(
                "policy version %d is live: %s, %.1f MB fetched, live after %.0f ms, pause %.1f ms",
                report.version,
                "anchor" if report.density is None else f"{report.density:.3%} changed",
                report.payload_bytes / 1e6,
                report.timings_ms["live_ms"],
                report.timings_ms["pause_ms"],
            )
            return report

    async def _sync(self, target: int) -> SyncReport:
        start = time.perf_counter()
        previous = self.version
        self._enter(SyncState.FETCHING)
        try:
            planned, staged = await self._stage(target)
            self._ledger_check(planned, target)
            ledger = self.ledger.advance(target, planned["expected"], _add_corrections(staged))
        except BaseException:
            await self._discard()
            raise
        self._enter(SyncState.SEALED)
        stage_ms = (time.perf_counter() - start) * 1e3
        timings = await self._swap(ledger)
        live_ms = (time.perf_counter() - start) * 1e3
        await self._discard()
        if self._ledger_path is not None:
            await asyncio.to_thread(ledger.write, self._ledger_path)
        return SyncReport(
            version=target,
            previous_version=previous,
            changed_elements=planned["changed_elements"],
            total_elements=planned["total_elements"],
            payload_bytes=planned["payload_bytes"],
            plan_bytes=sum(rank["plan_bytes"] for rank in staged),
            timings_ms=planned["timings_ms"] | {"stage_ms": stage_ms, "live_ms": live_ms} | timings,
        )

    async def _stage(self, target: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Planner and ranks work at the same time; both ended when this returns or raises."""
        await self._planner.ensure_started()
        arguments = {"version": target, "address": self._planner.address}
        await self._engine.collective("policy_start", "stage", arguments)
        try:
            planned = await self._planner.plan(self.version, target, self._on_planner_event)
        except BaseException as error:
            # Also on cancellation: a planner that goes on would send into the next version's channels.
            if not isinstance(error, PublicationError | StoreError | LayoutError):
                await self._planner.kill()
            statuses = await wait_for_ranks(self._engine)
            for rank, status in enumerate(statuses):
                if status["state"] == "failed" and not status["aborted"]:
                    raise RuntimeError(f"rank {rank} could not stage: {status['error']}") from error
            raise
        return planned, await self._rank_results()

    def _on_planner_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            if self.state is SyncState.FETCHING:
                self._enter(SyncState.STAGING)
            self.progress |= {"done": event["done"], "total": event["total"]}
        else:
            self.progress |= {"chain": event}

    def _ledger_check(self, planned: dict[str, Any], target: int) -> None:
        chain = self.progress.get("chain", {})
        first = (chain.get("deltas") or [target])[0]
        self.ledger.check_parent(first, chain.get("parent_checksums", {}))

    async def _rank_results(self) -> list[dict[str, Any]]:
        statuses = await wait_for_ranks(self._engine)
        for rank, status in enumerate(statuses):
            if status["state"] != "done":
                raise RuntimeError(f"rank {rank} could not stage: {status.get('error', status['state'])}")
        return [status["result"] for status in statuses]

    async def _swap(self, ledger: Ledger) -> dict[str, float]:
        """The pause: freeze, write, make the version the reported one, go on. Returns its timings."""
        version = ledger.version
        self._enter(SyncState.PAUSING)
        marks = [time.perf_counter()]
        await self._engine.pause()
        try:
            marks.append(time.perf_counter())
            self._enter(SyncState.COMMITTING)
            await self._commit(version)
            marks.append(time.perf_counter())
            self._enter(SyncState.PUBLISHING)
            await self._publish(version)
            self.ledger = ledger
        except EnginePoisoned:
            raise  # Stays paused: nothing may be served from mixed weights.
        except BaseException:
            await self._engine.resume()
            raise
        await self._engine.resume()
        marks.append(time.perf_counter())
        drain, commit, publish = ((after - before) * 1e3 for before, after in pairwise(marks))
        return {
            "drain_ms": drain,
            "commit_ms": commit,
            "publish_ms": publish,
            "pause_ms": (marks[-1] - marks[0]) * 1e3,
        }

    async def _commit(self, version: int) -> None:
        """Writes on all ranks, or on none: if one fails, all write their old values back."""
        try:
            await self._engine.collective("policy_commit", version)
        except Exception as failure:
            await self._undo(version, "commit", failure)

    async def _publish(self, version: int) -> None:
        """Makes the written version the reported one; new weights are never served under the old name."""
        try:
            await self._engine.enter_policy(version)
        except Exception as failure:
            await self._undo(version, "publication", failure)

    async def _undo(self, version: int, step: str, failure: Exception) -> NoReturn:
        logger.error("%s of version %d failed; writing the old values back", step, version, exc_info=failure)
        try:
            await self._engine.collective("policy_undo", version)
            await self._engine.enter_policy(self.version)
        except Exception as undo_failure:
            raise EnginePoisoned(
                f"{step} of version {version} failed ({failure}) and could not be undone ({undo_failure})"
            ) from undo_failure
        raise RuntimeError(f"{step} of version {version} failed and was undone: {failure}") from failure

    async def _discard(self) -> None:
        await self._engine.collective("policy_discard")

    def _enter(self, state: SyncState) -> None:
        now = time.perf_counter()
        elapsed_ms, self._state_since = (now - self._state_since) * 1e3, now
        logger.debug("%s -> %s after %.1f ms", self.state.value, state.value, elapsed_ms)
        self.state = state
        for observer in self._observers:
            observer.on_state(state, self.version, elapsed_ms)

    def _fail(self, state: SyncState, target: int, error: Exception) -> None:
        self.last_error = f"{type(error).__name__}: {error}"
        self._enter(state)
        logger.error("version %d was refused, still serving version %d: %s", target, self.version, error)
        for observer in self._observers:
            observer.on_failure(target, error)


async def wait_for_ranks(engine: Engine) -> list[dict[str, Any]]:
    """Waits until no rank's stage thread is busy; returns their statuses."""
    interval_s = POLL_INTERVAL_S
    while True:
        statuses = await engine.collective("policy_status")
        if all(status["state"] != "running" for status in statuses):
            return statuses
        await asyncio.sleep(interval_s)
        interval_s = min(interval_s * 1.5, 0.05)


def _add_corrections(staged: Sequence[dict[str, Any]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for rank in staged:
        for name, correction in rank["corrections"].items():
            total[name] = adler32_add(total.get(name, 0), correction)
    return total
