"""Admission: every request gets the policy version it starts under, and waits while a new one is written."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable
from contextvars import ContextVar
from typing import NamedTuple

from kvtier.namespace import Namespace, namespace_salt


class VersionSpan(NamedTuple):
    """Output tokens `start` up to `end` of one choice were made by policy version `version`."""

    version: str
    start: int
    end: int


class PolicyStamp:
    """What one HTTP request was served by: the version that its first engine request started under, and for each
    choice that the engine was asked for, in order, its spans once it has ended (`runtime.version_spans`)."""

    def __init__(self) -> None:
        self.version: int | None = None
        self.spans: list[list[VersionSpan] | None] = []


CURRENT_STAMP: ContextVar[PolicyStamp | None] = ContextVar("policy_stamp", default=None)
# Set by this server's own requests (the KV canary's), whose salt names a namespace that no policy owns.
OWN_NAMESPACE: ContextVar[bool] = ContextVar("own_namespace", default=False)


class AdmissionGate:
    """Open while serving, closed inside a pause. Asyncio only; one event loop."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.namespace = Namespace(version)
        self._open = asyncio.Event()
        self._open.set()
        self._stamps: weakref.WeakValueDictionary[str, PolicyStamp] = weakref.WeakValueDictionary()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def admit(self, request_id: str, caller_salt: str | None) -> str:
        """Waits until the gate is open, stamps the request and returns its `cache_salt`.

        There is no await between the stamp and the caller's next step, so a request that is then sent at once cannot
        straddle a policy change on its way to the engine.
        """
        await self._open.wait()
        if OWN_NAMESPACE.get():
            assert caller_salt is not None
            return caller_salt
        stamp = CURRENT_STAMP.get()
        if stamp is not None:
            if stamp.version is None:
                stamp.version = self.version
            self._stamps[request_id] = stamp
        return namespace_salt(self.namespace.name, caller_salt)

    def enter(self, version: int, namespace: Namespace, moved: Iterable[str]) -> None:
        """Makes `version` the one that requests start under; `moved` had been admitted but will start under it."""
        self.version = version
        self.namespace = namespace
        for request_id in moved:
            stamp = self._stamps.get(request_id)
            if stamp is not None:
                stamp.version = version
