"""Tokens a second and hit rate of shared-prefix, multi-turn sessions against concurrency, tier on and off."""

from __future__ import annotations

from typing import Any

from kvtier.bench.engine import BenchEngine
from kvtier.bench.processes import in_process, say, tier
from kvtier.bench.sizes import CHUNK, Arm, Sizes


def run_sessions(checkpoint: str, sizes: Sizes) -> dict[str, Any]:
    """Where the prefixes outgrow the pool and fit the tier, and where everything fits the pool (what the tier costs).

    Every arm meets the same requests; each (arm, concurrency) gets a namespace of its own, so starts cold.
    """
    found: dict[str, Any] = {}
    for pool_name, pool in (("outgrown", sizes.small_pool_blocks), ("fits", sizes.large_pool_blocks)):
        off = in_process(measure_sessions, checkpoint, sizes, Arm(pool, None, "off"))
        with tier(sizes.tier_bytes) as host:
            on = in_process(measure_sessions, checkpoint, sizes, Arm(pool, host.transfer, "lmcache"))
        found[pool_name] = {"pool_blocks": pool, "off": off, "on": on}
    return found


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
