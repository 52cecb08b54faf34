"""The generator: the published shape, seeded, and in a format that is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_agentx.synthetic import synthetic_documents, synthetic_sessions, write_synthetic
from bench_agentx.traces import describe, read_traces, scale_context


def test_the_shape_is_the_published_one() -> None:
    shape = describe([scale_context(session, 1 / 16) for session in synthetic_sessions(24, seed=7)])
    assert shape.input_tokens_p50 * 16 == pytest.approx(110_000, rel=0.2)
    assert shape.input_tokens_p90 * 16 == pytest.approx(300_000, rel=0.2)
    assert shape.output_tokens_p50 * 16 == pytest.approx(218, rel=0.1)
    assert shape.think_time_s_p50 == pytest.approx(10.0, rel=0.15)
    assert shape.conversation_hit_rate == pytest.approx(0.96, abs=0.01)
    assert shape.subagents > 5


def test_a_seed_is_a_trace() -> None:
    assert synthetic_documents(3, seed=1) == synthetic_documents(3, seed=1)
    assert synthetic_documents(3, seed=1) != synthetic_documents(3, seed=2)


def test_more_sessions_do_not_change_the_first_ones() -> None:
    assert synthetic_documents(4, seed=1)[:2] == synthetic_documents(2, seed=1)


def test_sessions_share_the_prefix_and_nothing_else() -> None:
    first, second = (session.root.turns[-1].block_ids.tolist() for session in synthetic_sessions(2, seed=3))
    shared = set(first) & set(second)
    assert shared == set(range(len(shared)))
    assert len(shared) * 64 == synthetic_sessions(1, seed=3)[0].root.prefix_tokens


def test_every_subagent_is_joined_by_the_next_call() -> None:
    spawns = [spawn for session in synthetic_sessions(30, seed=5) for spawn in session.root.spawns]
    assert spawns
    assert all(spawn.join_turn == spawn.after_turn + 1 for spawn in spawns)


def test_written_files_are_read_back(tmp_path: Path) -> None:
    write_synthetic(tmp_path, 3, seed=2)
    read = read_traces([tmp_path], lambda text: [])
    assert [session.id for session in read] == [session.id for session in synthetic_sessions(3, seed=2)]
    assert [session.peak_context_tokens for session in read] == [
        session.peak_context_tokens for session in synthetic_sessions(3, seed=2)
    ]
