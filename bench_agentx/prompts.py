"""Prompts: exact token counts, and equal tokens exactly where block ids are equal.

Every token is a hash of its block's id and its place in the block, so nothing is stored and the same seed gives
the same prompts anywhere. The cache-bust marker of AgentX's ``first_turn_prefix`` rule overwrites the first
tokens after the tools-and-system prefix, rather than adding some: lengths stay exact. It is the same for all
turns and subagents of one play of a session, and new in each play, so plays share no cache beyond the prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench_agentx.types import Agent, Message, Role, Session, Turn
from bench_agentx.vocabulary import Vocabulary

MARKER_TOKENS = 8

Tokens = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Prompt:
    """``token_ids``: int64 [tokens]. ``edges``: int64, rising, positions at which prefixes may stop being shared:
    the end of each block, of the prefix, of the marker, and of the prompt."""

    token_ids: Tokens
    edges: Tokens


class PromptBuilder:
    """Builds the prompts of one run. ``run_key`` makes the run's markers differ from those of other runs."""

    def __init__(self, vocabulary: Vocabulary, seed: int, run_key: str, cache_bust: bool) -> None:
        self._vocabulary = vocabulary
        self._seed = seed
        self._run_key = run_key
        self._cache_bust = cache_bust

    def prompt(self, session: Session, play: int, agent: Agent, turn_index: int) -> Prompt:
        """The prompt of one turn in the ``play``-th play of the run."""
        turn = agent.turns[turn_index]
        if turn.messages:
            token_ids: Tokens = turn.block_ids.copy()
            edges: Tokens = np.arange(1, turn.input_tokens + 1, dtype=np.int64)
        else:
            token_ids = self._filler(session, agent, turn_index)
            edges = _edges(session, turn)
        if self._cache_bust:
            start = marker_start(agent)
            marker = self._tokens(_hash("marker", self._run_key, str(play)), MARKER_TOKENS)
            token_ids[start : start + MARKER_TOKENS] = marker[: turn.input_tokens - start]
        return Prompt(token_ids, edges)

    def messages(self, session: Session, play: int, agent: Agent, turn_index: int) -> tuple[Message, ...]:
        """The same prompt as chat messages: what was said before, the recorded answers, what is new."""
        recorded = agent.turns[turn_index].messages
        if recorded:
            return self._marked(recorded, play)
        token_ids = self.prompt(session, play, agent, turn_index).token_ids
        found: list[Message] = []
        start = 0
        for role, end in _segments(agent, turn_index):
            if end > start:
                found.append(Message(role, self._vocabulary.decode(token_ids[start:end])))
                start = end
        return tuple(found)

    def _marked(self, messages: tuple[Message, ...], play: int) -> tuple[Message, ...]:
        if not self._cache_bust:
            return messages
        first_user = next(index for index, message in enumerate(messages) if message.role == "user")
        rid = f"{_hash('marker', self._run_key, str(play)):016x}"[:12]
        marked = Message("user", f"[rid:{rid}]\n\n{messages[first_user].content}")
        return (*messages[:first_user], marked, *messages[first_user + 1 :])

    def _filler(self, session: Session, agent: Agent, turn_index: int) -> Tokens:
        turn = agent.turns[turn_index]
        edges = _block_edges(session, turn)
        base = np.uint64(_hash("block", str(self._seed), session.namespace))
        keys = np.append(
            _mix(turn.block_ids.view(np.uint64) + base),
            # what no block covers is this turn's own: a later turn has a block there, with other content
            np.uint64(_hash("tail", str(self._seed), session.id, agent.name, str(turn_index))),
        )
        starts = np.concatenate(([0], edges))
        counts = np.diff(np.append(starts, turn.input_tokens))
        place = np.arange(turn.input_tokens) - np.repeat(starts, counts)
        return self._pick(np.repeat(keys, counts) + place.astype(np.uint64))

    def _tokens(self, key: int, count: int) -> Tokens:
        return self._pick(np.uint64(key) + np.arange(count, dtype=np.uint64))

    def _pick(self, words: _Words) -> Tokens:
        choices = self._vocabulary.token_ids
        picked: Tokens = choices[(_mix(words) % np.uint64(len(choices))).astype(np.int64)]
        return picked


def marker_start(agent: Agent) -> int:
    """Where an agent's marker goes: after its prefix, or at the front where some prompt has no room there."""
    shortest = min(turn.input_tokens for turn in agent.turns)
    return agent.prefix_tokens if agent.prefix_tokens + MARKER_TOKENS <= shortest else 0


def _block_edges(session: Session, turn: Turn) -> Tokens:
    """Ends of the turn's blocks, int64 [blocks]; a scaled block is as long as rounding leaves it."""
    ends = np.rint(np.arange(1, len(turn.block_ids) + 1) * session.block_tokens).astype(np.int64)
    clipped: Tokens = np.minimum(ends, turn.input_tokens)
    return clipped


def _edges(session: Session, turn: Turn) -> Tokens:
    markers = [marker_start(agent) for agent in session.agents()]
    ends = [*markers, *(start + MARKER_TOKENS for start in markers), turn.input_tokens]
    edges = np.unique(np.concatenate((_block_edges(session, turn), np.array(ends, dtype=np.int64))))
    return edges[(edges > 0) & (edges <= turn.input_tokens)]


def _segments(agent: Agent, turn_index: int) -> Iterator[tuple[Role, int]]:
    """(role, end position) of each message of a turn's prompt.

    History starts at the last turn that did not extend the one before it (a compaction, say).
    """
    first = turn_index
    while first > 0 and _extends(agent.turns[first - 1], agent.turns[first]):
        first -= 1
    yield "system", marker_start(agent)
    yield "user", agent.turns[first].input_tokens
    for before, after in zip(agent.turns[first:turn_index], agent.turns[first + 1 : turn_index + 1], strict=True):
        yield "assistant", min(before.input_tokens + before.output_tokens, after.input_tokens - 1)
        yield "user", after.input_tokens


def _extends(before: Turn, after: Turn) -> bool:
    shared = len(before.block_ids)
    grows = after.input_tokens > before.input_tokens + 1 and len(after.block_ids) >= shared
    return grows and bool(np.array_equal(before.block_ids, after.block_ids[:shared]))


def _mix(words: _Words) -> _Words:
    """splitmix64's finaliser (Steele, Lea and Flood 2014) on uint64 words, wrapping."""
    words = words * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _hash(*parts: str) -> int:
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
