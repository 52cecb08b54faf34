"""Idle gaps shrink; overlap and everything else stays."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_agentx.timeline import shorten_idle_gaps
from bench_agentx.traces import read_traces
from bench_agentx.types import Agent, Session, Turn


def _session(*intervals: tuple[float, float]) -> Session:
    turns = tuple(Turn(8, 1, np.empty(0, np.int64), start, end) for start, end in intervals)
    return Session("s", "s", 4.0, Agent("root", turns))


def _delays(session: Session) -> list[float]:
    turns = session.root.turns
    return [after.start_s - before.end_s for before, after in itertools.pairwise(turns)]


def test_delays_of_a_plain_session_are_capped() -> None:
    shortened = shorten_idle_gaps(_session((0, 2), (5, 6), (106, 110), (121, 122)), cap_s=10.0)
    assert _delays(shortened) == [3.0, 10.0, 10.0]


def test_the_clock_starts_at_the_first_request() -> None:
    shortened = shorten_idle_gaps(_session((50, 51), (53, 54)), cap_s=10.0)
    assert [turn.start_s for turn in shortened.root.turns] == [0.0, 3.0]


def test_a_parent_that_waits_for_busy_subagents_is_not_idle(data: Path) -> None:
    (session,) = read_traces([data / "weka_relative.json"], lambda text: [])
    shortened = shorten_idle_gaps(session, cap_s=2.0)
    assert [turn.start_s for turn in shortened.root.turns] == [0.0, 7.0, 10.0, 13.0]
    assert [turn.start_s for turn in shortened.root.spawns[0].agent.turns] == [2.0, 5.0]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=12),
    st.integers(0, 20),
)
def test_order_and_durations_survive_and_no_gap_exceeds_the_cap(steps: list[tuple[int, int]], cap_s: int) -> None:
    start, intervals = 0.0, []
    for gap, duration in steps:
        start += gap
        intervals.append((start, start + duration))
        start += duration
    shortened = shorten_idle_gaps(_session(*intervals), float(cap_s))
    for before, after in zip(intervals, shortened.root.turns, strict=True):
        assert after.end_s - after.start_s == before[1] - before[0]
    expected = [min(after[0] - before[1], cap_s) for before, after in itertools.pairwise(intervals)]
    assert np.allclose(_delays(shortened), expected)
