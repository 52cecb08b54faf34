"""The host tier over a supervised LMCache server: its life beside the engine, its namespaces, its report.

Order at start-up: the connector wants a server before the engine has any KV memory, and how much is free is known only
after the weights were verified and their disk copy was dropped. So an `auto` tier starts with a small pool, and the
server is replaced by one of the final size before serving starts (`resize`), on the path that a crash takes too.
"""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from kvtier.namespace import namespace_of, version_of
from kvtier.segments import is_running, remove_dead_segments
from kvtier.server import LmcacheServer, ServerState, ServerUnreachable
from kvtier.sizing import MIN_TIER_BYTES
from kvtier.types import TierEngine, TierRequest
from kvtier.wiring import lmcache_transfer_config

logger = logging.getLogger("rollout.kv")
# Workers are told to end before; one that is still there after this keeps its segment.
_WORKER_END_TIMEOUT_S = 5.0
_SAMPLE = re.compile(r"^(lmcache_mp_\w+?)(?:\{(.*)\})? ([-+.\deE]+)$", re.MULTILINE)


class LmcacheTier:
    """`name`, `capacity_bytes`, `state`: for reports. Start it before the engine, attach it after."""

    name = "lmcache"

    def __init__(self, request: TierRequest, chunk_tokens: int) -> None:
        self.request = request
        self.chunk_tokens = chunk_tokens
        self._directory = tempfile.TemporaryDirectory(prefix="rollout-kv-")
        self.server = LmcacheServer(request.size_bytes or MIN_TIER_BYTES, chunk_tokens, Path(self._directory.name))
        self._engine: TierEngine | None = None
        self._keep: list[str] | None = None
        self._workers: set[int] = set()

    @property
    def capacity_bytes(self) -> int:
        return self.server.capacity_bytes

    @property
    def state(self) -> str:
        return self.server.state.value

    @property
    def is_up(self) -> bool:
        return self.server.state is ServerState.RUNNING

    def transfer_config(self) -> dict[str, Any]:
        return lmcache_transfer_config(self.server.address)

    async def start(self) -> None:
        """Raises ServerFailed. What an earlier server's killed workers left in memory goes first."""
        if leftovers := remove_dead_segments():
            logger.warning("removed shared memory that an earlier server left: %s", ", ".join(leftovers))
        await self.server.start()

    async def attach(self, engine: TierEngine) -> None:
        """From now on the engine hears of the server's deaths, and a dead server is replaced."""
        self._engine = engine
        self._workers = set(await engine.collective("kv_process"))
        self.server.on_lost, self.server.on_back = self._on_lost, self._on_back
        self.server.watch()

    async def resize(self, capacity_bytes: int) -> None:
        """Raises ServerFailed."""
        await self.server.resize(capacity_bytes)

    async def reclaim(self, namespaces: list[str]) -> None:
        """Lets go of all other namespaces, in the background of the server; also of what they still store later."""
        self._keep = namespaces
        try:
            await self.server.call("reclaim", keep=namespaces)
        except ServerUnreachable as error:
            # Only space: a new server starts empty, and `_on_back` says it again.
            logger.warning("old KV namespaces are not reclaimed yet: %s", error)

    async def stored(self, token_ids: list[int], cache_salt: str) -> bool:
        """Counts the entries of the salt's namespace, so it is right for a namespace with one prompt in it."""
        usage = await self.server.call("usage")
        counts = usage["namespaces"].get(namespace_of(cache_salt), {"entries": 0})
        return bool(counts["entries"] >= len(token_ids) // self.chunk_tokens)

    async def describe(self) -> dict[str, Any]:
        """Pool, entries by namespace, counters. Without a server that answers: its state only."""
        described: dict[str, Any] = {
            "backend": self.name,
            "state": self.state,
            "capacity_bytes": self.capacity_bytes,
            "restarts": self.server.restarts,
        }
        try:
            usage, samples = await self.server.call("usage"), await self._samples()
        except ServerUnreachable as error:
            return described | {"error": str(error)}

        def count(name: str) -> int:
            return int(samples.get(f"lmcache_mp_{name}_total", 0))

        namespaces = [
            {"namespace": name, "version": version_of(name), **counts} for name, counts in usage["namespaces"].items()
        ]
        return described | {
            "used_bytes": usage["used_bytes"],
            "entries": sum(counts["entries"] for counts in usage["namespaces"].values()),
            "namespaces": namespaces,
            # Since the server's last start. It counts what we reclaim as evicted too.
            "reclaimed_entries": usage["reclaimed"],
            "evicted_entries": max(0, count("l1_evicted_chunks") - usage["reclaimed"]),
            "stored_bytes": count("l1_write_chunks") * usage["entry_bytes"],
            "loaded_bytes": count("l1_read_chunks") * usage["entry_bytes"],
            "lookup_tokens": count("lookup_requested_tokens"),
            "hit_tokens": count("lookup_hit_tokens"),
        }

    async def close(self) -> None:
        """Ends the server and removes what it and killed workers left. Call once the engine has ended."""
        await self.server.stop()
        deadline = time.monotonic() + _WORKER_END_TIMEOUT_S
        while any(map(is_running, self._workers)) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if leftovers := remove_dead_segments():
            logger.warning("removed shared memory of workers that were killed: %s", ", ".join(leftovers))
        self._directory.cleanup()

    async def _samples(self) -> dict[str, float]:
        """The server's counters, added up over labels."""
        text = (await self.server.call("metrics"))["text"]
        totals: dict[str, float] = {}
        for name, _, value in _SAMPLE.findall(text):
            if name.endswith("_total"):
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals

    async def _on_lost(self) -> None:
        assert self._engine is not None
        await self._engine.collective("kv_server_lost")
        await self._engine.utility("rollout_kv_server", False)

    async def _on_back(self) -> None:
        assert self._engine is not None
        if not all(await self._engine.collective("kv_server_found")):
            logger.error("not every rank could register with the new LMCache server: its heartbeat tries again")
            return
        await self._engine.utility("rollout_kv_server", True)
        if self._keep is not None:
            await self.reclaim(self._keep)
