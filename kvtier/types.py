"""What a user may ask of the KV tier, and what the rest of the server sees of it. No I/O."""

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
    canary: bool = True


class TierEngine(Protocol):
    """What a tier needs of the engine that uses it."""

    async def collective(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of `kvtier.worker` on every rank."""

    async def utility(self, method: str, *arguments: Any) -> Any:
        """Calls a utility of the engine core."""
