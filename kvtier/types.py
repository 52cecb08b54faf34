"""What a user may ask of the KV tier, and the two ports around it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, Protocol


@unique
class Backend(Enum):
    LMCACHE = "lmcache"
    NATIVE = "native"


@dataclass(frozen=True)
class TierRequest:
    """`size_bytes` None: size it from what is free once the model is loaded."""

    backend: Backend
    size_bytes: int | None


class TierEngine(Protocol):
    """What a tier needs of the engine that uses it."""

    async def collective(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of `kvtier.worker` on every rank."""

    async def utility(self, method: str, *arguments: Any) -> Any:
        """Calls a utility of the engine core (`runtime.engine_core`)."""


class HostTier(Protocol):
    """A host KV tier beside one engine. Implementations: `kvtier.lmcache_tier`, `kvtier.native_tier`."""

    name: str
    request: TierRequest
    chunk_tokens: int

    @property
    def capacity_bytes(self) -> int: ...

    @property
    def state(self) -> str: ...

    @property
    def is_up(self) -> bool: ...

    def transfer_config(self) -> dict[str, Any]:
        """vLLM's `kv_transfer_config`."""

    async def start(self) -> None:
        """Before the engine starts. Raises ServerFailed."""

    async def attach(self, engine: TierEngine) -> None:
        """Once the engine runs."""

    async def resize(self, capacity_bytes: int) -> None:
        """Only for a tier that was not given a size."""

    async def reclaim(self, namespaces: list[str]) -> None:
        """Lets go of KV of all other namespaces, beside serving."""

    async def stored(self, token_ids: list[int], cache_salt: str) -> bool:
        """Whether all full chunks of a prompt can be loaded."""

    async def describe(self) -> dict[str, Any]:
        """For `GET /kv`: at least `backend`, `state`, `capacity_bytes`, `restarts`."""

    async def close(self) -> None:
        """After the engine has ended."""
