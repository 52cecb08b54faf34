"""Trace files into sessions that a server can replay: found, read, scaled, filtered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench_agentx.conversation import Encode, read_conversations
from bench_agentx.fields import read_json
from bench_agentx.mooncake import read_mooncake
from bench_agentx.prefix_cache import EndlessPrefixCache
from bench_agentx.prompts import PromptBuilder
from bench_agentx.types import Agent, Session, Spawn, TraceError
from bench_agentx.vocabulary import vocabulary_of_ids
from bench_agentx.weka import parse_weka


def read_traces(paths: Iterable[Path], encode: Encode) -> tuple[Session, ...]:
    """Every session of the given files and directories (their ``*.json`` and ``*.jsonl``, by name).

    The format is told by the content: JSONL is Mooncake, a JSON object is WEKA, a JSON array is vLLM's
    multi-turn conversations (which need ``encode``). Raises TraceError for the first thing that is wrong.
    """
    files = [file for path in paths for file in _files(path)]
    sessions = tuple(session for file in files for session in _read_file(file, encode))
    if not sessions:
        raise TraceError("no trace given")
    return sessions


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".json", ".jsonl") and file.is_file())
        if not files:
            raise TraceError(f"{path}: expected *.json or *.jsonl files, found none")
        return files
    if not path.is_file():
        raise TraceError(f"{path}: expected a trace file or a directory of them, found nothing")
    return [path]


def _read_file(file: Path, encode: Encode) -> Sequence[Session]:
    if file.suffix == ".jsonl":
        return read_mooncake(file)
    document = read_json(file)
    if isinstance(document, list):
        return read_conversations(document, str(file), encode)
    return [parse_weka(document, str(file))]


def scale_context(session: Session, factor: float) -> Session:
    """The session with every token count multiplied by ``factor``: same ids, same sharing, shorter blocks."""
    if factor == 1.0:
        return session
    if any(turn.messages for turn in session.turns()):
        raise TraceError(f"session {session.id!r}: a conversation of texts cannot be scaled; leave the scale at 1")
    return replace(session, block_tokens=session.block_tokens * factor, root=_scale(session.root, factor))


def _scale(agent: Agent, factor: float) -> Agent:
    turns = tuple(
        replace(
            turn,
            input_tokens=max(1, round(turn.input_tokens * factor)),
            output_tokens=max(1, round(turn.output_tokens * factor)),
        )
        for turn in agent.turns
    )
    spawns = tuple(Spawn(_scale(spawn.agent, factor), spawn.after_turn, spawn.join_turn) for spawn in agent.spawns)
    return replace(agent, turns=turns, spawns=spawns, prefix_tokens=round(agent.prefix_tokens * factor))


def fitting_scale(sessions: Iterable[Session], context_tokens: int) -> float:
    """The largest factor <= 1 with which every session fits a server's context length."""
    peak_tokens = max(session.peak_context_tokens for session in sessions)
    # two roundings, of the prompt and of the output, may each add half a token
    return min(1.0, max(1, context_tokens - 1) / peak_tokens)


def limit_turns(session: Session, most: int) -> Session:
    """The session cut after its root's first ``most`` turns, with the subagents that these spawn."""
    root = session.root
    spawns = tuple(
        replace(spawn, join_turn=spawn.join_turn if (spawn.join_turn or 0) < most else None)
        for spawn in root.spawns
        if spawn.after_turn < most
    )
    return replace(session, root=replace(root, turns=root.turns[:most], spawns=spawns))


@dataclass(frozen=True, slots=True)
class TraceShape:
    """What a set of sessions asks of a server. Token counts and seconds are over requests."""

    sessions: int
    subagents: int
    requests: int
    input_tokens_p50: float
    input_tokens_p90: float
    output_tokens_p50: float
    think_time_s_p50: float
    conversation_hit_rate: float


def describe(sessions: Sequence[Session]) -> TraceShape:
    """The shape of a trace. ``conversation_hit_rate``: tokens that a prefix cache which forgets nothing within a
    session, and shares nothing between sessions, need not compute."""
    turns = [turn for session in sessions for turn in session.turns()]
    inputs = np.array([turn.input_tokens for turn in turns])
    think_s = [
        max(0.0, after.start_s - before.end_s)
        for session in sessions
        for agent in session.agents()
        for before, after in zip(agent.turns, agent.turns[1:], strict=False)
    ]
    return TraceShape(
        sessions=len(sessions),
        subagents=sum(len(session.agents()) - 1 for session in sessions),
        requests=len(turns),
        input_tokens_p50=float(np.median(inputs)),
        input_tokens_p90=float(np.percentile(inputs, 90)),
        output_tokens_p50=float(np.median([turn.output_tokens for turn in turns])),
        think_time_s_p50=float(np.median(think_s)) if think_s else 0.0,
        conversation_hit_rate=sum(_hit_tokens(session) for session in sessions) / float(inputs.sum()),
    )


def _hit_tokens(session: Session) -> int:
    builder = PromptBuilder(vocabulary_of_ids(1 << 20), seed=0, run_key="", cache_bust=False)
    cache = EndlessPrefixCache()
    calls = sorted(
        ((agent, index) for agent in session.agents() for index in range(len(agent.turns))),
        key=lambda call: call[0].turns[call[1]].start_s,
    )
    return sum(cache.admit(builder.prompt(session, 0, agent, index)) for agent, index in calls)
