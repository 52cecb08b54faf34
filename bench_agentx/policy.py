"""Policy updates during a run: asked for on a schedule, or only observed, and what clients saw of them.

Versions are observed in answers: the ``x-policy-version`` header (the version that a request started on), and
the ``weight_versions`` spans of a choice where a server gives them (which tokens came from which version).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from bench_agentx.client import Client
from bench_agentx.replay import Replay
from bench_agentx.rows import Row


@dataclass(frozen=True, slots=True)
class PolicyUpdate:
    """One update that this run asked for. Times in seconds since the measured part began."""

    asked_s: float
    answered_s: float
    status: int
    answer: Any


class PolicyUpdater:
    """POSTs ``{"version": "latest"}`` to ``url`` every ``every_s`` seconds of a replay's measured part."""

    def __init__(self, client: Client, replay: Replay, url: str | None, every_s: float) -> None:
        self.updates: list[PolicyUpdate] = []
        self._client = client
        self._replay = replay
        self._url = url
        self._every_s = every_s

    async def run(self) -> None:
        """Until cancelled; at once without a URL. A server that does not answer is an update of status 0."""
        if self._url is None:
            return
        await self._replay.measuring.wait()
        origin_s = self._replay.progress.started_s
        while True:
            await asyncio.sleep(self._every_s)
            asked_s = time.perf_counter() - origin_s
            try:
                status, answer = await self._client.post_json(self._url, {"version": "latest"})
            except (aiohttp.ClientError, TimeoutError) as error:
                status, answer = 0, str(error)
            self.updates.append(PolicyUpdate(asked_s, time.perf_counter() - origin_s, status, answer))


def policy_summary(rows: Sequence[Row], updates: Sequence[PolicyUpdate]) -> dict[str, Any] | None:
    """What clients saw of policy versions; None where there was one at most, and no update was asked for.

    ``pause_ms``: for each version that went live, over the streams that straddle it, the gap between the last
    token before and the first after. A server that reports no spans leaves the windows of the updates asked
    for: there it is each open stream's longest gap, so at least its longest ordinary one.
    ``staleness``: versions that were live when a request ended, minus the version of each of its tokens.
    """
    spans = [(row, span) for row in rows for span in _spans(row)]
    live_s = _live_since(rows)
    if len(live_s) < 2 and not updates:
        return None
    tokens_by_version: Counter[int] = Counter()
    staleness: Counter[int] = Counter()
    for row, (version, start, end) in spans:
        newest = max((other for other, since_s in live_s.items() if since_s <= row.end_s), default=version)
        tokens_by_version[version] += end - start
        staleness[max(0, newest - version)] += end - start
    total = sum(staleness.values())
    return {
        "updates_asked": len(updates),
        "updates_failed": sum(update.status != 200 for update in updates),
        "versions_live_s": {str(version): since_s for version, since_s in sorted(live_s.items())},
        "pause_ms": _pauses(rows, updates),
        "tokens_by_version": {str(version): count for version, count in sorted(tokens_by_version.items())},
        "staleness_avg": sum(lag * count for lag, count in staleness.items()) / total if total else None,
        "staleness_max": max(staleness) if staleness else None,
        "tokens_by_staleness": {str(lag): count for lag, count in sorted(staleness.items())},
    }


def _spans(row: Row) -> list[tuple[int, int, int]]:
    """(version, first token, end) of a row's tokens; without spans all are of the version it started on."""
    if row.version_spans:
        return [(span["version"], span["start"], span["end"]) for span in row.version_spans]
    if row.policy_version is None:
        return []
    return [(row.policy_version, 0, row.completion_tokens or len(row.arrivals_s))]


def _live_since(rows: Sequence[Row]) -> dict[int, float]:
    """Version -> the first moment at which some client had proof of it."""
    proofs: dict[int, float] = {}
    for row in rows:
        for version, start, _ in _spans(row):
            if row.arrivals_s:
                seen_s = row.arrivals_s[min(start, len(row.arrivals_s) - 1)]
                proofs[version] = min(seen_s, proofs.get(version, seen_s))
    return proofs


def _pauses(rows: Sequence[Row], updates: Sequence[PolicyUpdate]) -> dict[str, dict[str, float]]:
    gaps_ms: dict[str, list[float]] = {}
    for row in rows:
        # where each piece is one token, a span's start is a place among the arrivals
        if len(row.version_spans) > 1 and len(row.arrivals_s) == row.completion_tokens:
            for span in row.version_spans[1:]:
                first = span["start"]
                if 0 < first < len(row.arrivals_s):
                    gap_s = row.arrivals_s[first] - row.arrivals_s[first - 1]
                    gaps_ms.setdefault(f"version {span['version']}", []).append(gap_s * 1000)
    if not gaps_ms:
        for number, update in enumerate(updates):
            seen = [gap for row in rows if (gap := _longest_gap_ms(row, update)) is not None]
            if seen:
                gaps_ms[f"update {number}"] = seen
    return {
        name: {"streams": len(gaps), "p50": float(np.median(gaps)), "max": max(gaps)} for name, gaps in gaps_ms.items()
    }


def _longest_gap_ms(row: Row, update: PolicyUpdate) -> float | None:
    """The longest gap of a stream that was open during the whole update, among the gaps that touch it."""
    arrivals = np.array(row.arrivals_s)
    if len(arrivals) < 2 or arrivals[0] > update.asked_s or arrivals[-1] < update.answered_s:
        return None
    touching = (arrivals[1:] >= update.asked_s) & (arrivals[:-1] <= update.answered_s)
    return float(np.diff(arrivals)[touching].max()) * 1000
