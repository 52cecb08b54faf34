"""Readers: every format into the same session trees, and nothing invalid past them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from bench_agentx.traces import describe, fitting_scale, limit_turns, read_traces, scale_context
from bench_agentx.types import Session, TraceError
from bench_agentx.weka import parse_weka


def _encode(text: str) -> list[int]:
    return [sum(map(ord, word)) for word in text.split()]


def _read(*paths: Path) -> tuple[Session, ...]:
    return read_traces(paths, _encode)


def test_weka_calls_become_turns_with_their_ids_and_times(data: Path) -> None:
    (session,) = _read(data / "weka_relative.json")
    turns = session.root.turns
    assert [turn.input_tokens for turn in turns] == [70, 100, 130, 90]
    assert [turn.output_tokens for turn in turns] == [4, 3, 2, 2]
    assert [turn.start_s for turn in turns] == [0.0, 7.0, 11.0, 41.0]
    assert [turn.end_s for turn in turns] == [2.0, 8.0, 12.0, 42.0]
    assert turns[3].block_ids.tolist() == [1, 2, 50, 51, 52]
    assert session.root.prefix_tokens == 32
    assert session.block_tokens == 16


def test_a_subagent_written_when_it_finished_starts_when_its_parents_call_ended(data: Path) -> None:
    (session,) = _read(data / "weka_relative.json")
    first, second = session.root.spawns
    assert [turn.start_s for turn in first.agent.turns] == [2.0, 5.0]
    assert [turn.start_s for turn in second.agent.turns] == [2.0]
    assert (first.after_turn, first.join_turn) == (0, 1)
    assert (second.after_turn, second.join_turn) == (0, 1)


def test_a_subagent_on_the_sessions_clock_that_outlives_the_parent_is_joined_by_nobody(data: Path) -> None:
    (session,) = _read(data / "weka_absolute.json")
    (spawn,) = session.root.spawns
    assert [turn.start_s for turn in spawn.agent.turns] == [2.0, 9.0]
    assert (spawn.after_turn, spawn.join_turn) == (0, None)


def test_mooncake_lines_are_sessions_in_one_namespace(data: Path) -> None:
    sessions = _read(data / "mooncake.jsonl")
    assert [session.start_s for session in sessions] == [0.0, 0.1, 0.4]
    assert [session.root.turns[0].input_tokens for session in sessions] == [1100, 600, 1300]
    assert len({session.namespace for session in sessions}) == 1


def test_mooncake_lines_of_one_session_are_its_turns(tmp_path: Path) -> None:
    lines = [
        {"session_id": "a", "timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]},
        {"session_id": "b", "timestamp": 5, "input_length": 512, "output_length": 1, "hash_ids": [2]},
        {"session_id": "a", "delay": 2500, "input_length": 1024, "output_length": 1, "hash_ids": [1, 3]},
    ]
    path = tmp_path / "sessions.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    first, second = _read(path)
    assert [turn.start_s for turn in first.root.turns] == [0.0, 2.5]
    assert len(second.root.turns) == 1


def test_conversations_have_a_turn_for_each_answer_after_the_whole_history(data: Path) -> None:
    greeting, sums = _read(data / "conversations.json")
    assert [[message.role for message in turn.messages] for turn in greeting.root.turns] == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
    ]
    assert [turn.input_tokens for turn in greeting.root.turns] == [4 + 6, 4 + 6 + 1 + 3]
    assert [turn.output_tokens for turn in greeting.root.turns] == [1, 3]
    assert greeting.root.prefix_tokens == 4
    assert len(sums.root.turns) == 1


def test_a_directory_is_all_its_files(data: Path) -> None:
    assert len(_read(data)) == 2 + 2 + 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"block_size": 0}, "field 'block_size': expected an integer >= 1, found 0"),
        ({"hash_id_scope": "mine"}, "field 'hash_id_scope': expected one of 'local', 'global', found 'mine'"),
        ({"requests": []}, "field 'requests': expected a non-empty array, found []"),
        ({"id": None}, "field 'id': expected a string, found None"),
        ({"tool_tokens": -1}, "field 'tool_tokens': expected an integer >= 0, found -1"),
    ],
)
def test_a_bad_weka_document_names_field_and_value(data: Path, change: dict[str, Any], expected: str) -> None:
    document = json.loads((data / "weka_relative.json").read_text()) | change
    with pytest.raises(TraceError) as caught:
        parse_weka(document, "trace.json")
    assert str(caught.value) == f"trace.json: {expected}"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("in", 0, "requests[3]: field 'in': expected an integer >= 1, found 0"),
        ("in", True, "requests[3]: field 'in': expected an integer >= 1, found True"),
        ("t", -1.0, "requests[3]: field 't': expected a finite number >= 0, found -1.0"),
        ("type", "x", "requests[3]: field 'type': expected one of 'n', 's', 'subagent', found 'x'"),
        ("hash_ids", [1, "2"], "requests[3]: field 'hash_ids': expected an array of integers, found [1, '2']"),
        ("hash_ids", list(range(8)), "requests[3]: field 'hash_ids': 8 block ids, but the input length fills only 7"),
        ("hash_ids", [1 << 80], f"requests[3]: field 'hash_ids': expected ids that fit 64 bits, found [{1 << 80}]"),
        ("api_time", "slow", "requests[3]: field 'api_time': expected a finite number >= 0, found 'slow'"),
    ],
)
def test_a_bad_weka_call_names_place_field_and_value(data: Path, field: str, value: object, expected: str) -> None:
    document = json.loads((data / "weka_relative.json").read_text())
    document["requests"][3][field] = value
    with pytest.raises(TraceError) as caught:
        parse_weka(document, "trace.json")
    assert str(caught.value) == f"trace.json: {expected}"


def test_calls_that_go_back_in_time_are_refused(data: Path) -> None:
    document = json.loads((data / "weka_relative.json").read_text())
    document["requests"][4]["t"] = 1.0
    with pytest.raises(TraceError, match=r"requests\[4\]: field 't': expected a time >= the call before it \(7\)"):
        parse_weka(document, "trace.json")


def test_a_subagent_before_any_call_is_refused(data: Path) -> None:
    document = json.loads((data / "weka_relative.json").read_text())
    document["requests"] = copy.deepcopy(document["requests"][1:])
    with pytest.raises(TraceError, match="a subagent that follows a call of its parent"):
        parse_weka(document, "trace.json")


def test_a_missing_field_says_so(data: Path) -> None:
    document = json.loads((data / "weka_relative.json").read_text())
    del document["requests"][0]["out"]
    with pytest.raises(TraceError, match=r"requests\[0\]: field 'out': .* found nothing \(the field is missing\)"):
        parse_weka(document, "trace.json")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", '{"timestamp": 0}\n', "line 1: field 'input_length'"),
        ("a.jsonl", "\n{nonsense\n", "line 2: not JSON"),
        (
            "a.jsonl",
            '{"timestamp": 9, "input_length": 1, "output_length": 1, "hash_ids": []}\n'
            '{"timestamp": 8, "input_length": 1, "output_length": 1, "hash_ids": []}\n',
            "line 2: field 'timestamp': expected a time >= the line before it (9), found 8",
        ),
        ("a.jsonl", "", "expected at least one request"),
        ("a.json", "[]", "expected a non-empty array of conversations"),
        ("a.json", '[{"id": "x", "messages": [{"role": "tool", "content": ""}]}]', "field 'role': expected one of"),
        (
            "a.json",
            '[{"id": "x", "messages": [{"role": "assistant", "content": "hi"}]}]',
            "[0]: messages[0]: field 'role': expected 'user' before each 'assistant', found 'assistant'",
        ),
        ("a.json", "7", "expected a JSON object, found 7"),
        ("a.json", "\udcff", "not UTF-8"),
    ],
)
def test_a_bad_file_names_the_line_and_the_field(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(TraceError) as caught:
        _read(tmp_path / name)
    assert expected in str(caught.value)
    assert name in str(caught.value)


def test_an_absent_path_and_an_empty_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="found nothing"):
        _read(tmp_path / "absent.json")
    with pytest.raises(TraceError, match="found none"):
        _read(tmp_path)


def test_the_fitting_scale_fits_and_keeps_sharing(data: Path) -> None:
    sessions = _read(data / "weka_relative.json", data / "mooncake.jsonl")
    factor = fitting_scale(sessions, 64)
    scaled = [scale_context(session, factor) for session in sessions]
    assert max(session.peak_context_tokens for session in scaled) <= 64
    assert max(session.peak_context_tokens for session in scaled) >= 62
    assert fitting_scale(sessions, 1 << 20) == 1.0


def test_limiting_turns_drops_what_they_would_have_spawned(data: Path) -> None:
    (session,) = _read(data / "weka_relative.json")
    cut = limit_turns(session, 1)
    assert len(cut.root.turns) == 1
    assert [spawn.join_turn for spawn in cut.root.spawns] == [None, None]


def test_public_traces_are_read_whole(shared_traces: Path) -> None:
    weka = _read(shared_traces / "weka")
    shape = describe(weka)
    assert (shape.sessions, shape.subagents, shape.requests) == (8, 9, 221)
    assert 0.85 < shape.conversation_hit_rate < 1.0
    for session in weka:
        for spawn in session.root.spawns:
            parent_end_s = session.root.turns[spawn.after_turn].end_s
            assert abs(spawn.agent.turns[0].start_s - parent_end_s) < 1.5  # launched by the call before it
            assert spawn.join_turn == spawn.after_turn + 1
    assert len(_read(shared_traces / "mooncake")) == 600
