"""What the client itself costs: a benchmark whose client is slow measures its client."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

_SAMPLE_EVERY_S = 0.05
BUSY_CPU_SHARE = 0.85
"""Above this share of one core the loop no longer keeps up, and latencies are the client's own."""


@dataclass(frozen=True, slots=True)
class ClientOverhead:
    """``cpu_share``: of one core. ``loop_lag_ms_*``: how late the event loop runs what is due."""

    cpu_share: float
    loop_lag_ms_p50: float
    loop_lag_ms_p99: float
    loop_lag_ms_max: float


class OverheadMonitor:
    """Samples the event loop that it runs on, from the moment ``measuring`` is set."""

    def __init__(self, measuring: asyncio.Event) -> None:
        self._measuring = measuring
        self._lags_s: list[float] = []
        self._cpu_s = self._wall_s = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        await self._measuring.wait()
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()
        while True:
            due_s = time.perf_counter() + _SAMPLE_EVERY_S
            await asyncio.sleep(_SAMPLE_EVERY_S)
            self._lags_s.append(max(0.0, time.perf_counter() - due_s))

    def result(self) -> ClientOverhead:
        """The overhead up to now; zeros where nothing was measured."""
        if not self._lags_s:
            return ClientOverhead(0.0, 0.0, 0.0, 0.0)
        cpu_share = (time.process_time() - self._cpu_s) / (time.perf_counter() - self._wall_s)
        lags_ms = np.array(self._lags_s) * 1000
        p50, p99 = np.percentile(lags_ms, (50, 99))
        return ClientOverhead(cpu_share, float(p50), float(p99), float(lags_ms.max()))
