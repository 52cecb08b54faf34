"""The words of a replay: sessions, agents, turns. Pure data and rules, no I/O.

A *session* is one recorded agent run: a tree whose root *agent* spawns others (subagents). An agent is a
sequence of *turns*; a turn is one request to the model. All times are seconds on the session's own recorded
clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Role = Literal["system", "user", "assistant"]


class TraceError(ValueError):
    """A trace file is not what its format promises. The user mends the file; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message of a conversation that carries text rather than block ids."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One request: what goes in, how much comes out, and when it was recorded.

    ``block_ids``: int64 [blocks], one id per block of the session's ``block_tokens`` prompt tokens; equal ids
    in one namespace are equal tokens. They may cover less than ``input_tokens`` (WEKA drops the last, partial
    block); what they leave uncovered is unique to the turn. Turns of a text conversation have ``messages``
    instead, and no ids.
    """

    input_tokens: int
    output_tokens: int
    block_ids: npt.NDArray[np.int64]
    start_s: float
    end_s: float
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Spawn:
    """A subagent: released when turn ``after_turn`` of its parent ends.

    Parent turn ``join_turn`` waits for the whole subagent; with None nobody does (a background agent), and
    only the session's end waits for it.
    """

    agent: Agent
    after_turn: int
    join_turn: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Agent:
    """A sequence of turns over one growing context.

    ``prefix_tokens``: leading prompt tokens (tool definitions and system prompt) that come before the first
    user message, and so before the cache-bust marker.
    """

    name: str
    turns: tuple[Turn, ...]
    spawns: tuple[Spawn, ...] = ()
    prefix_tokens: int = 0

    @property
    def end_s(self) -> float:
        """Recorded end of the agent's own last turn."""
        return self.turns[-1].end_s


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """One recorded session tree.

    ``namespace``: block ids mean the same tokens within a namespace, and nothing across two.
    ``block_tokens``: prompt tokens that one block id stands for; a fraction once the session was scaled.
    ``start_s``: when the session began on the clock of its trace, where the trace records arrivals.
    """

    id: str
    namespace: str
    block_tokens: float
    root: Agent
    start_s: float = 0.0

    def agents(self) -> tuple[Agent, ...]:
        """Every agent of the tree, each parent before its children."""
        found = [self.root]
        for agent in found:
            found.extend(spawn.agent for spawn in agent.spawns)
        return tuple(found)

    def turns(self) -> tuple[Turn, ...]:
        return tuple(turn for agent in self.agents() for turn in agent.turns)

    @property
    def peak_context_tokens(self) -> int:
        """The longest prompt plus its output: the context length that a server needs."""
        return max(turn.input_tokens + turn.output_tokens for turn in self.turns())
