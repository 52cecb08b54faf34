"""The engine port of `sync` over vLLM's AsyncLLM: pausing, policy versions, worker calls. Knows vLLM."""

from __future__ import annotations

from typing import Any

from runtime.admission import AdmissionGate


class VllmEngine:
    """Implements `sync.coordinator.Engine` and puts the admission gate in front of every engine request.

    All routes (completions, chat, responses, batches, n > 1) end in the core client's `add_request_async`, which is
    where a request gets its namespace: the stamp and the send happen without an await in between.
    """

    def __init__(self, async_llm: Any, gate: AdmissionGate) -> None:
        self._llm = async_llm
        self.gate = gate
        self._add_request = async_llm.engine_core.add_request_async
        async_llm.engine_core.add_request_async = self._admit_and_add

    async def _admit_and_add(self, request: Any) -> None:
        request.cache_salt = await self.gate.admit(request.request_id, request.cache_salt)
        await self._add_request(request)

    async def collective(self, method: str, *arguments: Any) -> list[Any]:
        results: list[Any] = await self._llm.collective_rpc(method, args=arguments)
        return results

    async def pause(self) -> None:
        """Closes admission, then freezes the scheduler ("keep"); caches stay, running requests keep their place."""
        self.gate.close()
        try:
            await self._llm.engine_core.pause_scheduler_async("keep", False)
        except BaseException:
            self.gate.open()
            raise

    async def enter_policy(self, version: int) -> None:
        moved = await self._llm.engine_core.call_utility_async("rollout_enter_policy", version)
        self.gate.enter(version, moved)

    async def resume(self) -> None:
        await self._llm.engine_core.resume_scheduler_async()
        self.gate.open()
