"""Tokens a second and hit rate of shared-prefix, multi-turn sessions against concurrency, tier on and off."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from kvtier.bench.engine import BenchEngine
from kvtier.bench.processes import alternate, in_process, say, tier
from kvtier.bench.sizes import CHUNK, Arm, Sizes


def run_sessions(checkpoint: str, sizes: Sizes) -> dict[str, Any]:
    """Where the prefixes outgrow the pool and fit the tier, and where everything fits the pool (what the tier costs).

    Every arm meets the same requests; each (arm, concurrency) gets a namespace of its own, so starts cold. Medians over
    the rounds.
    """
    found: dict[str, Any] = {}
    pools = (("outgrown", sizes.small_pool_blocks, 1), ("fits", sizes.large_pool_blocks, sizes.rounds))
    for pool_name, pool, rounds in pools:
        off = partial(in_process, measure_sessions, checkpoint, sizes, Arm(pool, None, "off"))
        on = partial(_measure_with_tier, checkpoint, sizes, pool)
        arms = alternate({"off": off, "on": on}, rounds)
        found[pool_name] = {"pool_blocks": pool} | {name: _medians(results) for name, results in arms.items()}
    return found


def _measure_with_tier(checkpoint: str, sizes: Sizes, pool: int) -> list[dict[str, Any]]:
    with tier(sizes.tier_bytes) as host:
        rows: list[dict[str, Any]] = in_process(
            measure_sessions, checkpoint, sizes, Arm(pool, host.transfer, "lmcache")
        )
    return rows


def _medians(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Figure by figure, for each concurrency."""
    return [{key: statistics.median(row[key] for row in rows) for key in rows[0]} for rows in zip(*rounds, strict=True)]


def measure_sessions(checkpoint: str, sizes: Sizes, arm: Arm) -> list[dict[str, Any]]:
    engine = BenchEngine(checkpoint, arm, session_limit(sizes))
    rows = []
    for concurrency in sizes.concurrency:
        figures, _ = engine.run_sessions(sizes, concurrency, f"sessions-{concurrency}")
        rows.append({"concurrency": concurrency, **figures})
        say(f"sessions {arm.name} pool={arm.pool_blocks} {rows[-1]}")
    return rows


def session_limit(sizes: Sizes) -> int:
    """The context that an engine needs for them."""
    return sizes.prefix_tokens + sizes.turns * (sizes.turn_tokens + 64) + CHUNK
