"""The policy service of one server: what it serves, how it follows the store, or why it cannot sync."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from kvtier.namespace import KvPolicy
from runtime.engine import VllmEngine
from runtime.kv_service import KvService
from sync.coordinator import Coordinator, SyncReport
from sync.follower import Follower
from sync.planner_client import PlannerClient
from sync.stores.base import Store

logger = logging.getLogger("rollout.policy")


class SyncRefused(Exception):
    """This server cannot sync; it serves the version it was started with. The message says why."""


@dataclass
class PolicyService:
    """`coordinator` is None where start-up refused sync (`refusal` says why) or no store was given."""

    version_at_start: int
    store: Store | None = None
    coordinator: Coordinator | None = None
    planner: PlannerClient | None = None
    follower: Follower | None = None
    refusal: str | None = None
    startup: dict[str, Any] = field(default_factory=dict)
    engine: VllmEngine | None = None
    kv: KvService | None = None
    poisoned: asyncio.Event = field(default_factory=asyncio.Event)
    _follow_task: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        return self.version_at_start if self.coordinator is None else self.coordinator.version

    @property
    def is_ready(self) -> bool:
        """Whether it serves what the store named at start-up, from weights that are known to be whole."""
        if self.poisoned.is_set():
            return False
        return self.follower is None or self.follower.caught_up.is_set()

    def start(self) -> None:
        """Starts following the store, if it should."""
        if self.follower is not None:
            self._follow_task = asyncio.create_task(self.follower.run(), name="policy-follower")

    async def sync(self, version: int | None, kv_policy: KvPolicy | None = None) -> SyncReport | None:
        """Syncs to `version`, or to what the store names latest; None if that is served already.

        `kv_policy`: what this one update does to requests and KV, where it differs from the server's.

        Raises SyncRefused, or what `Coordinator.sync` raises.
        """
        if self.coordinator is None or self.store is None:
            raise SyncRefused(self.refusal or "started without --policy-store")
        if version is None:
            version = await asyncio.to_thread(self.store.latest)
            if version is None:
                return None
        if self.coordinator.is_syncing or self.engine is None:
            return await self.coordinator.sync(version)
        with self.engine.updating(kv_policy):
            return await self.coordinator.sync(version)

    def describe(self) -> dict[str, Any]:
        """What `GET /policy` answers."""
        described: dict[str, Any] = {
            "version": self.version,
            "state": "refused" if self.coordinator is None else self.coordinator.state.value,
            "store": None if self.store is None else self.store.url,
            "following": self._follow_task is not None and not self._follow_task.done(),
            "startup": self.startup,
        }
        if self.coordinator is None:
            return described | {"error": self.refusal}
        report, ledger = self.coordinator.last_report, self.coordinator.ledger
        return described | {
            "error": self.coordinator.last_error,
            "progress": {key: value for key, value in self.coordinator.progress.items() if key != "chain"}
            if self.coordinator.is_syncing
            else None,
            "last_sync": None if report is None else report.to_json(),
            "ledger": {"tensors": len(ledger.tensors), "size_bytes": ledger.size_bytes},
        }

    def poison(self, error: Exception) -> None:
        """Engine memory may be mixed: the server must stop."""
        self.poisoned.set()

    async def close(self) -> None:
        """Stops following and ends the planner. A sync that has not sealed yet is given up."""
        if self._follow_task is not None:
            self._follow_task.cancel()
            (ended,) = await asyncio.gather(self._follow_task, return_exceptions=True)
            if isinstance(ended, Exception):
                # The engine is gone by now, so a sync that was under way cannot tell its workers.
                logger.info("a sync was given up at the end: %s", ended)
        if self.kv is not None:
            await self.kv.close()
        if self.planner is not None:
            await self.planner.stop()
        if self.store is not None:
            self.store.close()
