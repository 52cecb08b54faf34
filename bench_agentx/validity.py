"""Whether a run kept AgentX's rules, so that its numbers may be set beside others'."""

from __future__ import annotations

from collections.abc import Sequence

from bench_agentx.rows import Row
from bench_agentx.workload import Options, Workload

SHORTEST_DURATION_S = 900.0
IDLE_CAP_S = 10.0
MOST_CONTEXT_OVERFLOWS = 0.01


def deviations(options: Options, workload: Workload, rows: Sequence[Row], ended_by: str) -> list[str]:
    """Every rule that the run broke, in words; empty for a valid one."""
    overflows = sum(row.error == "context_overflow" for row in rows)
    broken = {
        f"duration {options.duration_s:g} s, not at least {SHORTEST_DURATION_S:g}": options.duration_s
        < SHORTEST_DURATION_S,
        f"ended by {ended_by}, not by its duration": ended_by != "duration",
        "a synthetic trace, not recorded sessions": not options.trace,
        f"context scaled by {workload.context_scale:.4g}": workload.context_scale != 1.0,
        f"delays scaled by {options.delay_scale:g}": options.delay_scale != 1.0,
        f"idle gaps capped at {options.idle_cap_s:g} s, not {IDLE_CAP_S:g}": options.idle_cap_s != IDLE_CAP_S,
        f"starts drawn from {options.start_ratio}, not (0, 1)": options.start_ratio != (0.0, 1.0),
        "sessions cut after a number of turns": options.max_turns is not None,
        "no cache bust": not options.cache_bust,
        "replayed by recorded arrival": options.order == "recorded",
        f"{overflows} of {len(rows)} requests overflowed the context": overflows > MOST_CONTEXT_OVERFLOWS * len(rows),
    }
    return [reason for reason, is_broken in broken.items() if is_broken]
