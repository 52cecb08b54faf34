"""The engine port of `sync` over vLLM's AsyncLLM: pausing, policy versions, worker calls. Knows vLLM."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from kvtier.namespace import KvPolicy, OnUpdate
from runtime.admission import AdmissionGate
from runtime.version_spans import record_spans

logger = logging.getLogger("rollout.engine")
DRAIN_TIMEOUT_S = 0.25
_POLL_S = 0.002


class VllmEngine:
    """Implements `sync.coordinator.Engine` and puts the admission gate in front of every engine request.

    All routes (completions, chat, responses, batches, n > 1) end in the core client's `add_request_async`, which is
    where a request gets its namespace: the stamp and the send happen without an await in between.
    """

    def __init__(self, async_llm: Any, gate: AdmissionGate) -> None:
        self._llm = async_llm
        self.gate = gate
        self.has_tier = False
        self.drain_timeout_s = DRAIN_TIMEOUT_S
        self.update_policy = KvPolicy()
        self.last_move: dict[str, Any] | None = None
        self.on_namespace: Callable[[list[str]], Coroutine[Any, Any, None]] | None = None
        self._served_namespace = gate.namespace
        self._reclaiming: asyncio.Task[None] | None = None
        self._add_request = async_llm.engine_core.add_request_async
        async_llm.engine_core.add_request_async = self._admit_and_add
        async_llm.generate = record_spans(async_llm.generate)

    async def _admit_and_add(self, request: Any) -> None:
        request.cache_salt = await self.gate.admit(request.request_id, request.cache_salt)
        await self._add_request(request)

    async def collective(self, method: str, *arguments: Any) -> list[Any]:
        results: list[Any] = await self._llm.collective_rpc(method, args=arguments)
        return results

    async def utility(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the engine core (`runtime.engine_core`)."""
        return await self._llm.engine_core.call_utility_async(method, *arguments)

    def observe_outputs(self, observer: Callable[[Any], None]) -> None:
        """Shows every step's outputs to `observer` before vLLM takes them."""
        core = self._llm.engine_core
        get_output = core.get_output_async

        async def get_and_observe() -> Any:
            outputs = await get_output()
            observer(outputs)
            return outputs

        core.get_output_async = get_and_observe

    @contextmanager
    def updating(self, policy: KvPolicy | None) -> Iterator[None]:
        """Within, an update does `policy` to KV instead of what the server was started with."""
        configured = self.update_policy
        self.update_policy = policy or configured
        try:
            yield
        finally:
            self.update_policy = configured

    async def pause(self) -> None:
        """Closes admission, then freezes the scheduler ("keep"); caches stay, running requests keep their place.

        KV transfers in flight get `drain_timeout_s` to end. What has not ended by then goes on during the pause: a
        store lands in its own namespace, a load is given back if its request moves to another (`enter_policy`).
        """
        self.gate.close()
        try:
            await self._pause_scheduler()
        except BaseException:
            self.gate.open()
            raise

    async def _pause_scheduler(self) -> None:
        core = self._llm.engine_core
        deadline = time.monotonic() + self.drain_timeout_s
        # vLLM ends this pause only once finished requests have stored their KV, for which it has no bound.
        pausing = asyncio.ensure_future(core.pause_scheduler_async("keep", False))
        await asyncio.wait({pausing}, timeout=self.drain_timeout_s)
        while not pausing.done() and not await self.utility("rollout_computes_nothing"):
            await asyncio.wait({pausing}, timeout=_POLL_S)
        if pausing.done():
            await pausing
        else:
            pausing.add_done_callback(_log_late_pause)
        while self.has_tier and time.monotonic() < deadline:
            ranks = await self.collective("kv_transfers")
            if not any(rank["stores"] or rank["loads"] for rank in ranks):
                return
            await asyncio.sleep(_POLL_S)

    async def enter_policy(self, version: int) -> None:
        """Moves requests and the namespace by `update_policy`. The version served now keeps its namespace: that is
        a commit undone, and nothing has run since."""
        policy = self.update_policy
        is_undo = version == self.gate.version
        namespace = self.gate.namespace if is_undo else self.gate.namespace.after(version, policy)
        on_update = OnUpdate.KEEP if is_undo else policy.on_update
        report = await self.utility("rollout_enter_policy", version, namespace.name, on_update.value)
        self.last_move = report | {"namespace": namespace.name}
        self.gate.enter(version, namespace, report["moved"])

    async def resume(self) -> None:
        await self._llm.engine_core.resume_scheduler_async()
        self.gate.open()
        if self.on_namespace is not None and self.gate.namespace != self._served_namespace:
            self._served_namespace = self.gate.namespace
            # After the pause and beside serving: the guarantee does not need it, only memory does.
            self._reclaiming = asyncio.create_task(self.on_namespace([self.gate.namespace.name]))


def _log_late_pause(pausing: asyncio.Future[None]) -> None:
    if not pausing.cancelled() and (error := pausing.exception()) is not None:
        logger.error("the scheduler's pause ended with an error after it was no longer waited for: %s", error)
