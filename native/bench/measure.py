"""Medians of alternating rounds, in thread CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def median_seconds(work: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Runs each of the work once a round, so that all meet the same disturbances; the first round only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for round_number in range(rounds + 1):
        for name, function in work.items():
            start = time.thread_time()
            function()
            if round_number > 0:
                seconds[name].append(time.thread_time() - start)
    return {name: median(values) for name, values in seconds.items()}
