"""Recorded times: long idle gaps are shortened, the rest is kept.

AgentX caps idle time so that a coffee break does not idle a lane. The cap is applied to a session's own clock,
not to each delay: an idle gap is a stretch in which no recorded request of the whole tree is running, and what
exceeds the cap is cut out of the clock for every agent at once. So subagents keep their overlap, and a plain
session's end-to-start delays are simply ``min(delay, cap)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bench_agentx.types import Agent, Session, Spawn


def shorten_idle_gaps(session: Session, cap_s: float) -> Session:
    """The session on a clock that starts at its first request and has no idle gap longer than ``cap_s``."""
    gap_starts, gap_ends = _idle_gaps(session)
    origin_s = min(turn.start_s for turn in session.turns())
    excess_s = np.maximum(gap_ends - gap_starts - cap_s, 0.0)
    removed_before_s = np.concatenate(([0.0], np.cumsum(excess_s)))

    def shifted(time_s: float) -> float:
        gaps_over = int(np.searchsorted(gap_ends, time_s, side="right"))
        removed_s = removed_before_s[gaps_over]
        if gaps_over < len(gap_starts):  # inside a gap (a start ratio may point there): cut its tail
            removed_s += min(excess_s[gaps_over], max(0.0, time_s - gap_starts[gaps_over] - cap_s))
        return float(time_s - removed_s - origin_s)

    return replace(session, root=_shift(session.root, shifted))


def _idle_gaps(session: Session) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Starts and ends, float64 [gaps] each, of the stretches between requests, in order."""
    intervals = np.array(sorted((turn.start_s, turn.end_s) for turn in session.turns()))
    busy_until = np.maximum.accumulate(intervals[:, 1])[:-1]
    next_start = intervals[1:, 0]
    idle = next_start > busy_until
    return busy_until[idle], next_start[idle]


def _shift(agent: Agent, shifted: Callable[[float], float]) -> Agent:
    turns = tuple(replace(turn, start_s=shifted(turn.start_s), end_s=shifted(turn.end_s)) for turn in agent.turns)
    spawns = tuple(Spawn(_shift(spawn.agent, shifted), spawn.after_turn, spawn.join_turn) for spawn in agent.spawns)
    return replace(agent, turns=turns, spawns=spawns)
