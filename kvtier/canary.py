"""The canary: a prompt that is stored, evicted, reloaded and compared. A tier that silently recomputes fails it.

Needed because the connectors degrade without an error: an engine whose host tier does nothing answers correctly, only
slowly. Owns the judgement; the engine is behind `CanaryEngine`.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, Protocol

STORE_TIMEOUT_S = 10.0
_POLL_S = 0.02
_runs = count()


@dataclass(frozen=True)
class Probe:
    """One answered prompt: the first token, its top logprobs, and how much of the prompt was cached, in tokens."""

    token_id: int
    logprobs: tuple[tuple[int, float], ...]
    cached_tokens: int


@dataclass(frozen=True)
class CanaryReport:
    """`reload_ms`: time to first token from the host tier; `cold_ms` without any cache. `reason` says what failed."""

    works: bool
    reason: str
    version: int
    cold_ms: float | None = None
    reload_ms: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class CanaryEngine(Protocol):
    """What the canary needs of an engine with its tier."""

    @property
    def version(self) -> int: ...

    async def probe(self, token_ids: list[int], cache_salt: str) -> Probe:
        """Answers greedily with one token."""

    async def forget(self, token_ids: list[int], cache_salt: str) -> int:
        """Takes the prompt out of GPU memory's cache; returns the number of blocks."""

    async def stored(self, token_ids: list[int], cache_salt: str) -> bool:
        """Whether the host tier holds all full chunks of the prompt."""


async def run_canary(engine: CanaryEngine, chunk_tokens: int, vocabulary: int) -> CanaryReport:
    """Runs once, and once more if the policy changed in between. Takes two chunks of GPU memory while it runs."""
    report = await _run_once(engine, chunk_tokens, vocabulary)
    if report.version != engine.version:
        report = await _run_once(engine, chunk_tokens, vocabulary)
    return report


async def _run_once(engine: CanaryEngine, chunk_tokens: int, vocabulary: int) -> CanaryReport:
    version = engine.version
    run = next(_runs)
    namespace, stranger = f"canary-{run}", f"canary-{run}x"
    tokens = [random.Random(run).randrange(vocabulary) for _ in range(2 * chunk_tokens + 1)]

    def failed(reason: str) -> CanaryReport:
        return CanaryReport(False, reason, version)

    start = time.perf_counter()
    await engine.probe(tokens, namespace)
    cold_ms = (time.perf_counter() - start) * 1e3
    reference = await engine.probe(tokens, namespace)
    if reference.cached_tokens < 2 * chunk_tokens:
        return failed(f"{reference.cached_tokens} of {2 * chunk_tokens} tokens were in GPU memory right after a run")
    deadline = time.monotonic() + STORE_TIMEOUT_S
    while not await engine.stored(tokens, namespace):
        if time.monotonic() > deadline:
            return failed(f"the host tier has not stored two chunks within {STORE_TIMEOUT_S:.0f} s")
        await asyncio.sleep(_POLL_S)
    if await engine.forget(tokens, namespace) == 0:
        return failed("the prompt's blocks were not in GPU memory")
    start = time.perf_counter()
    reloaded = await engine.probe(tokens, namespace)
    reload_ms = (time.perf_counter() - start) * 1e3
    if reloaded.cached_tokens < 2 * chunk_tokens:
        return failed(f"{reloaded.cached_tokens} of {2 * chunk_tokens} tokens came back: the rest was recomputed")
    if (reloaded.token_id, reloaded.logprobs) != (reference.token_id, reference.logprobs):
        return failed("what came back from the host tier answers differently from GPU memory")
    if (await engine.probe(tokens, stranger)).cached_tokens:
        return failed("another namespace was given this one's KV")
    return CanaryReport(True, "stored, evicted, reloaded, equal to the last bit", version, cold_ms, reload_ms)
