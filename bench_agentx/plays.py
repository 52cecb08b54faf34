"""Which session a lane replays next, and where in it the first one starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench_agentx.types import Agent, Session

Order = Literal["shuffled", "sequential", "recorded"]


@dataclass(frozen=True, slots=True, eq=False)
class Play:
    """One replay of a session. ``start_at_s``: the instant of the session's clock that it begins at; what was
    recorded before is taken as done. Zero for the whole session."""

    number: int
    session: Session
    start_at_s: float = 0.0

    def first_turn(self, agent: Agent) -> int:
        """Index of an agent's first turn at or after the start; ``len(agent.turns)`` when none is left."""
        return int(np.searchsorted([turn.start_s for turn in agent.turns], self.start_at_s))


def endless_plays(sessions: Sequence[Session], order: Order, seed: int) -> Iterator[Play]:
    """Every session once, then again, ...: reshuffled each round, or in the trace's order.

    ``recorded`` is for open-loop replay: each session once, by its recorded start.
    """
    if order == "recorded":
        by_start = sorted(sessions, key=lambda session: session.start_s)
        yield from (Play(number, session) for number, session in enumerate(by_start))
        return
    random = np.random.default_rng(seed)
    number = 0
    while True:
        indices = random.permutation(len(sessions)) if order == "shuffled" else np.arange(len(sessions))
        for index in indices:
            yield Play(number, sessions[int(index)])
            number += 1


def started_midway(play: Play, start_ratio: tuple[float, float], seed: int) -> Play:
    """The play from a random instant between two shares of its recorded length (AgentX's t*).

    At least the root's last turn is left. Depends on the seed and the play's number only, so runs of different
    concurrency start the same plays at the same places.
    """
    root = play.session.root
    ratio = np.random.default_rng((seed, play.number)).uniform(*start_ratio)
    end_s = max(agent.end_s for agent in play.session.agents())
    return Play(play.number, play.session, min(float(ratio) * end_s, root.turns[-1].start_s))
