"""Reader of WEKA agentic traces (kv-cache-tester): one JSON document a session.

Format: https://github.com/callanjfox/kv-cache-tester, ``docs/trace_replay_tester.md``. ``requests`` holds, in
order, the root's calls (type ``n``, or ``s`` where the recording streamed) and ``subagent`` entries with their
own calls.

A subagent's times come in two shapes, told apart by its first inner ``t``:

* Inner times before the entry's own ``t`` are relative to the subagent's start. In these captures the entry
  was written when the subagent *finished*, so it started at ``t - duration_ms``: in every public one that
  instant is the end of the parent call that launched it, to half a second.
* Other inner times are on the session's clock, and the first of them is the start.
"""

from __future__ import annotations

import itertools

from bench_agentx.fields import Fields
from bench_agentx.types import Agent, Session, Spawn, Turn

JOIN_TOLERANCE_S = 0.5
"""Recorded starts are whole seconds, ends are not: a parent call this much before a child's end waited for it."""


def parse_weka(document: object, where: str) -> Session:
    """One parsed WEKA document as a session. Raises TraceError for anything that the format does not allow."""
    fields = Fields(document, where)
    session_id = fields.text("id")
    block_tokens = fields.integer("block_size", at_least=1)
    scope = fields.text("hash_id_scope", one_of=("local", "global"))
    entries = fields.objects("requests")
    is_call = [entry.text("type", one_of=("n", "s", "subagent")) != "subagent" for entry in entries]
    calls = list(itertools.compress(entries, is_call))
    if not calls:
        raise fields.error("requests", "at least one call of the root agent (type 'n' or 's')")
    turns = _turns(calls, block_tokens, offset_s=0.0)
    spawns = tuple(
        _spawn(entry, sum(is_call[:index]) - 1, turns, block_tokens)
        for index, entry in enumerate(entries)
        if not is_call[index]
    )
    root = Agent(name="root", turns=turns, spawns=spawns, prefix_tokens=_prefix_tokens(fields))
    return Session(
        id=session_id,
        namespace=session_id if scope == "local" else "",
        block_tokens=float(block_tokens),
        root=root,
    )


def _turns(calls: list[Fields], block_tokens: int, offset_s: float) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for call in calls:
        call.text("type", one_of=("n", "s"))
        input_tokens = call.integer("in", at_least=1)
        start_s = offset_s + call.seconds("t")
        if turns and start_s < turns[-1].start_s:
            raise call.error("t", f"a time >= the call before it ({turns[-1].start_s - offset_s:g})")
        turns.append(
            Turn(
                input_tokens=input_tokens,
                output_tokens=max(1, call.integer("out", at_least=0)),
                block_ids=call.block_ids("hash_ids", at_most=-(-input_tokens // block_tokens)),
                start_s=start_s,
                end_s=start_s + call.seconds("api_time", default=0.0),
            )
        )
    return tuple(turns)


def _spawn(entry: Fields, after_turn: int, parent: tuple[Turn, ...], block_tokens: int) -> Spawn:
    if after_turn < 0:
        raise entry.error("t", "a subagent that follows a call of its parent; this one precedes them all")
    calls = list(entry.objects("requests"))
    start_s, end_s = _recorded_span(entry, calls[0].seconds("t"), parent[after_turn].start_s)
    turns = _turns(calls, block_tokens, offset_s=start_s - calls[0].seconds("t"))
    end_s = end_s or max(turn.end_s for turn in turns)
    join_turn = next(
        (index for index in range(after_turn + 1, len(parent)) if parent[index].start_s + JOIN_TOLERANCE_S >= end_s),
        None,
    )
    agent = Agent(name=entry.text("agent_id"), turns=turns, prefix_tokens=_prefix_tokens(entry))
    return Spawn(agent=agent, after_turn=after_turn, join_turn=join_turn)


def _recorded_span(entry: Fields, first_call_s: float, released_s: float) -> tuple[float, float | None]:
    """Start and (if recorded) end of a subagent on the session's clock; see the module's docstring."""
    written_s = entry.seconds("t")
    duration_s = entry.seconds("duration_ms", default=0.0) / 1000
    if first_call_s + JOIN_TOLERANCE_S >= written_s:
        return first_call_s, first_call_s + duration_s if duration_s else None
    if duration_s:
        return max(written_s - duration_s, released_s), written_s
    return written_s, None


def _prefix_tokens(fields: Fields) -> int:
    return fields.integer("tool_tokens", at_least=0, default=0) + fields.integer("system_tokens", at_least=0, default=0)
