"""Reader of Mooncake traces: JSONL, one request a line, block ids that mean the same in the whole file.

Format: https://github.com/kvcache-ai/Mooncake, ``FAST25-release``: ``timestamp`` (ms), ``input_length``,
``output_length``, ``hash_ids`` (512-token blocks). Two optional fields, the ones that aiperf adds, turn lines
into conversations: ``session_id`` joins lines, ``delay`` (ms) is the wait between two turns.
"""

from __future__ import annotations

from pathlib import Path

from bench_agentx.fields import Fields, read_json_lines
from bench_agentx.types import Agent, Session, TraceError, Turn

BLOCK_TOKENS = 512


def read_mooncake(path: Path) -> tuple[Session, ...]:
    """The sessions of one file, by first appearance. Raises TraceError with the line, field and value."""
    conversations: dict[str, list[Turn]] = {}
    last_timestamp_s = 0.0
    for number, line in enumerate(read_json_lines(path), start=1):
        session_id = line.text("session_id", default=f"request-{number}")
        turns = conversations.setdefault(session_id, [])
        turns.append(_turn(line, turns[-1] if turns else None))
        if line.has("timestamp"):
            timestamp_s = line.seconds("timestamp") / 1000
            if timestamp_s < last_timestamp_s:
                raise line.error("timestamp", f"a time >= the line before it ({last_timestamp_s * 1000:g})")
            last_timestamp_s = timestamp_s
    if not conversations:
        raise TraceError(f"{path}: expected at least one request, found an empty file")
    return tuple(
        Session(
            id=session_id,
            namespace=f"mooncake:{path.name}",
            block_tokens=float(BLOCK_TOKENS),
            root=Agent(name="root", turns=tuple(turns)),
            start_s=turns[0].start_s,
        )
        for session_id, turns in conversations.items()
    )


def _turn(line: Fields, previous: Turn | None) -> Turn:
    """Mooncake records no service time: a turn ends when it starts, and ``delay`` counts from there."""
    input_tokens = line.integer("input_length", at_least=1)
    if previous is not None and line.has("delay"):
        start_s = previous.end_s + line.seconds("delay") / 1000
    else:
        start_s = line.seconds("timestamp") / 1000
    return Turn(
        input_tokens=input_tokens,
        output_tokens=max(1, line.integer("output_length", at_least=0)),
        block_ids=line.block_ids("hash_ids", at_most=-(-input_tokens // BLOCK_TOKENS)),
        start_s=start_s,
        end_s=start_s,
    )
