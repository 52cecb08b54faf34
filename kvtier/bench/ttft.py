"""Time to first token of a prompt that is cold, in GPU memory, in the host tier."""

from __future__ import annotations

import statistics
from typing import Any

from kvtier.bench.engine import BenchEngine
from kvtier.bench.processes import in_process, say, tier
from kvtier.bench.sizes import CHUNK, Arm, Sizes, make_tokens


def run_ttft(checkpoint: str, sizes: Sizes) -> list[dict[str, Any]]:
    pool = 2 * max(sizes.prompt_tokens) // CHUNK + 8
    with tier(sizes.tier_bytes) as host:
        rows: list[dict[str, Any]] = in_process(measure_ttft, checkpoint, sizes, Arm(pool, host.transfer, "lmcache"))
    return rows


def measure_ttft(checkpoint: str, sizes: Sizes, arm: Arm) -> list[dict[str, Any]]:
    """Medians in milliseconds, with the tokens that were cached: one token is generated after the prompt."""
    engine = BenchEngine(checkpoint, arm, max(sizes.prompt_tokens) + CHUNK)
    rows = []
    for tokens in sizes.prompt_tokens:
        times: dict[str, list[float]] = {"cold": [], "gpu": [], "host": []}
        cached: dict[str, int] = {}
        for repeat in range(sizes.repeats):
            prompt = make_tokens(tokens + 1, f"ttft-{tokens}-{repeat}")
            for kind in ("cold", "gpu", "host"):
                if kind == "host":
                    engine.forget(prompt, "ttft")
                milliseconds, cached[kind] = engine.first_token_ms(prompt, "ttft")
                times[kind].append(milliseconds)
        row = {f"{kind}_ms": statistics.median(values) for kind, values in times.items()}
        rows.append(
            {"prompt_tokens": tokens, **row, "host_over_cold": row["host_ms"] / row["cold_ms"], "cached": cached}
        )
        say(f"ttft {rows[-1]}")
    return rows
