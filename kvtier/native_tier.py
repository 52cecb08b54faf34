"""The host tier inside the engine: vLLM's own offloading (`kvtier.native_connector`). No process, no supervision."""

from __future__ import annotations

from typing import Any

from kvtier.types import TierEngine, TierRequest
from kvtier.wiring import native_transfer_config


class NativeTier:
    """Its pool is allocated with the engine's KV memory, so its size must be given."""

    name = "native"

    def __init__(self, request: TierRequest, chunk_tokens: int) -> None:
        if request.size_bytes is None:
            raise ValueError("the native tier is allocated while the engine starts: it needs a size")
        self.request = request
        self.chunk_tokens = chunk_tokens
        self.capacity_bytes = request.size_bytes
        self._engine: TierEngine | None = None

    @property
    def state(self) -> str:
        return "stopped" if self._engine is None else "running"

    @property
    def is_up(self) -> bool:
        return self._engine is not None

    def transfer_config(self) -> dict[str, Any]:
        return native_transfer_config(self.capacity_bytes)

    async def start(self) -> None:
        """Nothing: it starts with the engine."""

    async def attach(self, engine: TierEngine) -> None:
        self._engine = engine

    async def resize(self, capacity_bytes: int) -> None:
        raise ValueError("the native tier cannot be resized")

    async def reclaim(self, namespaces: list[str]) -> None:
        """Nothing: its keys are hashes that do not tell their namespace, and LRU takes what nobody touches first."""

    async def stored(self, token_ids: list[int], cache_salt: str) -> bool:
        assert self._engine is not None
        chunks: int = await self._engine.utility("rollout_stored_chunks", token_ids, cache_salt)
        return chunks == len(token_ids) // self.chunk_tokens

    async def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {
            "backend": self.name,
            "state": self.state,
            "capacity_bytes": self.capacity_bytes,
            "restarts": 0,
        }
        if self._engine is None:
            return described
        usage = await self._engine.utility("rollout_native_usage")
        return described | {"entries": usage["entries"], "used_bytes": usage["entries"] * usage["entry_bytes"]}

    async def close(self) -> None:
        self._engine = None
