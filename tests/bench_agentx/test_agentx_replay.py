"""The replay against a server that records times and bodies: order, delays, joins, concurrency, failures."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from agentx_stub import Seen, Stub, serving
from aiohttp import web

from bench_agentx.client import Client, Endpoint
from bench_agentx.plays import Play, endless_plays, started_midway
from bench_agentx.prefix_cache import EndlessPrefixCache
from bench_agentx.prompts import PromptBuilder
from bench_agentx.replay import Replay, Rules
from bench_agentx.timeline import shorten_idle_gaps
from bench_agentx.traces import fitting_scale, read_traces, scale_context
from bench_agentx.types import Session
from bench_agentx.vocabulary import vocabulary_of_ids

SCALE = 0.05  # a recorded second takes 50 ms
EARLY_S = 0.003  # clocks of two ends of one loop
LATE_S = 0.8  # slack for a busy machine, less than what any wrong rule would add; what stands still longer is measured


def _sessions(*paths: Path) -> list[Session]:
    return [shorten_idle_gaps(s, 10.0) for s in read_traces(paths, lambda text: [300 + len(w) for w in text.split()])]


def _replay(
    stub: Stub, sessions: list[Session], rules: Rules, *, kind: str = "completions", cache_bust: bool = False,
    stall_timeout_s: float = 5.0, control: Callable[[Replay], Awaitable[None]] | None = None,
) -> Replay:  # fmt: skip
    async def run() -> Replay:
        async with serving(stub) as url:
            endpoint = Endpoint(url, "stub", "chat" if kind == "chat" else "completions")
            async with Client(endpoint, stall_timeout_s) as client:
                prompts = PromptBuilder(vocabulary_of_ids(1000), 0, "run", cache_bust)
                replay = Replay(rules, sessions, client, prompts, EndlessPrefixCache())
                controlling = asyncio.create_task(control(replay)) if control else None
                await replay.run()
                if controlling:
                    controlling.cancel()
                return replay

    return asyncio.run(run())


def _rules(**changes: object) -> Rules:
    values: dict[str, object] = {
        "concurrency": 1, "duration_s": 30.0, "seed": 0, "order": "sequential", "start_ratio": (0.0, 0.0),
        "delay_scale": SCALE,
    }  # fmt: skip
    return Rules(**(values | changes))  # type: ignore[arg-type]


def _waits(requests: list[Seen]) -> list[float]:
    """Seconds from the end of one answer to the next request."""
    return [after.received_s - before.finished_s for before, after in itertools.pairwise(requests)]


def _assert_waited(stub: Stub, waited_s: float, recorded_s: float) -> None:
    assert recorded_s * SCALE - EARLY_S <= waited_s <= recorded_s * SCALE + LATE_S + stub.stalled_s


def test_weka_turns_keep_lengths_prefixes_and_end_to_start_delays(data: Path) -> None:
    stub = Stub(itl_s=0.002)
    sessions = _sessions(data / "weka_relative.json")
    replay = _replay(stub, sessions, _rules(max_sessions=1))
    root = stub.of("tiny_relative-0-root")
    assert [len(request.prompt) for request in root] == [70, 100, 130, 90]
    assert [request.body["max_tokens"] for request in root] == [4, 3, 2, 2]
    assert all(request.body["ignore_eos"] and request.body["stream"] for request in root)
    assert [_common(*pair) for pair in itertools.pairwise(r.prompt for r in root)] == [64, 96, 32]
    for waited_s, recorded_s in zip(_waits(root)[1:], [3.0, 10.0], strict=True):
        _assert_waited(stub, waited_s, recorded_s)
    assert replay.ended_by == "sessions"
    assert all(row.ok and row.prompt_tokens == row.input_tokens for row in replay.rows)


def test_subagents_start_after_their_parents_turn_and_hold_back_the_turn_that_joins_them(data: Path) -> None:
    stub = Stub(itl_s=0.005)
    _replay(stub, _sessions(data / "weka_relative.json"), _rules(max_sessions=1))
    root = stub.of("tiny_relative-0-root")
    one, two = stub.of("tiny_relative-0-agent_001"), stub.of("tiny_relative-0-agent_002")
    assert [len(request.prompt) for request in one] == [40, 60]
    for subagent in (one, two):
        _assert_waited(stub, subagent[0].received_s - root[0].finished_s, 0.0)
    _assert_waited(stub, _waits(one)[0], 2.0)
    last_end_s = max(one[-1].finished_s, two[-1].finished_s)
    _assert_waited(stub, root[1].received_s - last_end_s, 1.0)  # recorded: the last ended at 6, the turn began at 7
    assert one[0].received_s < two[0].finished_s  # they overlap
    assert two[0].received_s < one[-1].received_s


def test_a_background_subagent_holds_back_its_lane_but_not_its_parent(data: Path) -> None:
    stub = Stub()
    sessions = _sessions(data / "weka_absolute.json")
    _replay(stub, sessions, _rules(max_sessions=2))
    root, background = stub.of("tiny_absolute-0-root"), stub.of("tiny_absolute-0-agent_bg")
    assert root[1].received_s < background[1].received_s
    assert stub.of("tiny_absolute-1-root")[0].received_s >= background[1].finished_s


def test_mooncake_requests_keep_order_lengths_and_shared_blocks(data: Path) -> None:
    stub = Stub()
    _replay(stub, _sessions(data / "mooncake.jsonl"), _rules(max_sessions=3))
    assert [len(request.prompt) for request in stub.seen] == [1100, 600, 1300]
    assert [request.body["max_tokens"] for request in stub.seen] == [3, 2, 4]
    first, second, third = (request.prompt for request in stub.seen)
    assert (_common(first, second), _common(first, third)) == (512, 1024)


def test_recorded_order_sends_each_request_at_its_recorded_arrival(data: Path) -> None:
    stub = Stub()
    rules = _rules(concurrency=8, order="recorded", delay_scale=1.0)
    replay = _replay(stub, _sessions(data / "mooncake.jsonl"), rules)
    start_s = stub.seen[0].received_s
    for request, recorded_s in zip(stub.seen, [0.0, 0.1, 0.4], strict=True):
        assert recorded_s - 0.02 <= request.received_s - start_s <= recorded_s + LATE_S + stub.stalled_s
    assert replay.ended_by == "sessions"


def test_conversations_are_sent_as_recorded_messages(data: Path) -> None:
    stub = Stub()
    replay = _replay(stub, _sessions(data / "conversations.json"), _rules(max_sessions=2), kind="chat")
    bodies = [request.body for request in stub.of("greeting-0-root")]
    assert [[m["content"] for m in body["messages"]] for body in bodies] == [
        ["Answer in one word.", "What is the capital of France?"],
        ["Answer in one word.", "What is the capital of France?", "Paris.", "And of Italy?"],
    ]
    assert [body["max_tokens"] for body in bodies] == [1, 3]
    assert all(row.ok and len(row.arrivals_s) == row.output_tokens for row in replay.rows)


def test_concurrency_is_the_number_of_live_trees_and_lanes_recycle(data: Path) -> None:
    stub = Stub(ttft_s=0.01)
    seen_live: list[int] = []

    async def watch(replay: Replay) -> None:
        while True:
            seen_live.append(replay.progress.live_sessions)
            await asyncio.sleep(0.005)

    sessions = _sessions(data / "mooncake.jsonl")
    replay = _replay(stub, sessions, _rules(concurrency=2, max_sessions=9), control=watch)
    assert max(seen_live) == 2
    assert stub.most_open_streams == 2
    assert [row.play for row in sorted(replay.rows, key=lambda row: row.sent_s)] == list(range(9))
    assert replay.progress.finished_sessions == 9


def test_each_play_has_its_own_marker_after_the_shared_prefix(data: Path) -> None:
    stub = Stub()
    _replay(stub, _sessions(data / "weka_relative.json"), _rules(max_sessions=2), cache_bust=True)
    first, again = stub.of("tiny_relative-0-root"), stub.of("tiny_relative-1-root")
    assert _common(first[0].prompt, again[0].prompt) == 32
    assert _common(first[0].prompt, first[1].prompt) == 64


def test_the_duration_ends_the_run_and_nothing_new_starts(data: Path) -> None:
    stub = Stub(ttft_s=0.02)
    replay = _replay(stub, _sessions(data / "mooncake.jsonl"), _rules(concurrency=2, duration_s=1.0))
    assert replay.ended_by == "duration"
    assert len(replay.rows) > 4
    assert all(row.sent_s < 1.0 + LATE_S + stub.stalled_s for row in replay.rows)
    assert all(row.ok for row in replay.rows)  # what was under way had time to finish


def test_what_outlives_the_grace_period_is_counted_as_cancelled(data: Path) -> None:
    stub = Stub(ttft_s=5.0)
    rules = _rules(concurrency=2, duration_s=0.1, grace_period_s=0.1)
    replay = _replay(stub, _sessions(data / "mooncake.jsonl"), rules)
    assert [row.error for row in replay.rows] == ["cancelled", "cancelled"]


def test_a_lane_that_starts_midway_warms_up_with_the_turn_before(data: Path) -> None:
    stub = Stub()
    (session,) = _sessions(data / "weka_relative.json")
    # the compressed clock runs to 19; 9/19 of it is between root turns 1 (7 s) and 2 (11 s)
    end_s = max(agent.end_s for agent in session.agents())
    rules = _rules(max_sessions=1, start_ratio=(9 / end_s, 9 / end_s), delay_scale=0.3)
    replay = _replay(stub, [session], rules)
    warm = [(row.agent, row.turn) for row in replay.rows if row.phase == "warmup"]
    measured = [(row.agent, row.turn) for row in replay.rows if row.phase == "profiling"]
    assert warm == [("root", 1)]
    assert measured == [("root", 2), ("root", 3)]
    first = next(row for row in replay.rows if row.phase == "profiling")
    assert first.due_s == pytest.approx(2.0 * 0.3, abs=0.3)


def test_a_subagent_under_way_at_the_start_is_warmed_and_still_joined(data: Path) -> None:
    stub = Stub()
    (session,) = _sessions(data / "weka_relative.json")
    end_s = max(agent.end_s for agent in session.agents())
    rules = _rules(max_sessions=1, start_ratio=(4 / end_s, 4 / end_s))  # agent_001 between its calls
    replay = _replay(stub, [session], rules)
    warm = {(row.agent, row.turn) for row in replay.rows if row.phase == "warmup"}
    measured = [(row.agent, row.turn) for row in sorted(replay.rows, key=lambda r: r.sent_s) if row.phase != "warmup"]
    assert warm == {("root", 0), ("agent_001", 0)}
    assert measured == [("agent_001", 1), ("root", 1), ("root", 2), ("root", 3)]


def test_starts_depend_on_the_seed_and_the_play_only(data: Path) -> None:
    sessions = _sessions(data / "weka_relative.json", data / "weka_absolute.json")
    plays = list(itertools.islice(endless_plays(sessions, "shuffled", seed=4), 6))
    again = list(itertools.islice(endless_plays(sessions, "shuffled", seed=4), 6))
    assert [play.session.id for play in plays] == [play.session.id for play in again]
    starts = [started_midway(play, (0.0, 1.0), seed=4).start_at_s for play in plays]
    assert starts == [started_midway(play, (0.0, 1.0), seed=4).start_at_s for play in again]
    assert len(set(starts)) > 3
    assert all(play.first_turn(play.session.root) < len(play.session.root.turns) for play in _midway(plays))


def _midway(plays: list[Play]) -> list[Play]:
    return [started_midway(play, (1.0, 1.0), seed=0) for play in plays]


@pytest.mark.parametrize("status", [409, 429, 503])
def test_a_refused_turn_is_counted_and_its_session_goes_on_after_retry_after(data: Path, status: int) -> None:
    async def refuse_second(number: int, _: web.Request) -> web.StreamResponse | None:
        return web.Response(status=status, headers={"Retry-After": "1"}, text="busy") if number == 1 else None

    stub = Stub(fail=refuse_second)
    replay = _replay(stub, _sessions(data / "mooncake.jsonl"), _rules(max_sessions=3))
    assert [row.error for row in replay.rows] == [None, f"http_{status}", None]
    assert replay.rows[1].error_message == "busy"
    assert replay.ended_by == "sessions"


def test_a_turn_after_a_refused_one_waits_for_retry_after(data: Path) -> None:
    async def refuse_first(number: int, _: web.Request) -> web.StreamResponse | None:
        return web.Response(status=503, headers={"Retry-After": "1"}) if number == 0 else None

    stub = Stub(fail=refuse_first)
    _replay(stub, _sessions(data / "weka_absolute.json"), _rules(max_sessions=1))
    assert stub.seen[1].received_s - stub.seen[0].received_s >= 1.0


def test_a_context_overflow_ends_its_session(data: Path) -> None:
    async def overflow(number: int, _: web.Request) -> web.StreamResponse | None:
        return web.Response(status=400, text="This model's maximum context length is 10") if number == 1 else None

    stub = Stub(fail=overflow)
    replay = _replay(stub, _sessions(data / "weka_absolute.json"), _rules(max_sessions=2))
    first = [row for row in replay.rows if row.play == 0]
    assert "context_overflow" in [row.error for row in first]
    assert len(first) < 4
    assert len([row for row in replay.rows if row.play == 1]) == 4


def test_a_server_that_dies_midway_ends_the_run_with_what_was_seen(data: Path) -> None:
    async def die(number: int, request: web.Request) -> web.StreamResponse | None:
        if number >= 2:
            assert request.transport is not None
            request.transport.abort()
        return None

    stub = Stub(fail=die)
    rules = _rules(concurrency=8, delay_scale=0.0)
    replay = _replay(stub, _sessions(data / "mooncake.jsonl"), rules)
    assert replay.ended_by.startswith("server lost: ")
    assert [row.error for row in replay.rows].count("disconnected") >= 20
    assert [row.error for row in replay.rows].count(None) == 2


def test_a_server_that_is_not_there_is_lost_at_once() -> None:
    async def run() -> Replay:
        async with Client(Endpoint("http://127.0.0.1:9", "stub", "completions"), 5.0) as client:
            prompts = PromptBuilder(vocabulary_of_ids(1000), 0, "run", cache_bust=False)
            sessions = _sessions(Path(__file__).parent / "data" / "mooncake.jsonl")
            replay = Replay(_rules(concurrency=20, delay_scale=0.0), sessions, client, prompts, EndlessPrefixCache())
            await replay.run()
            return replay

    replay = asyncio.run(run())
    assert {row.error for row in replay.rows} == {"connect"}
    assert replay.ended_by.startswith("server lost")


def test_a_stalled_stream_is_counted_as_stalled(data: Path) -> None:
    stub = Stub(ttft_s=3.0)
    replay = _replay(stub, _sessions(data / "mooncake.jsonl"), _rules(max_sessions=1), stall_timeout_s=0.2)
    assert [row.error for row in replay.rows] == ["stalled"]


def test_streams_that_are_not_what_they_should_be_are_counted_by_kind(data: Path) -> None:
    endings = {
        "truncated": '{"choices": [{"text": "x"}]}',
        "server": '{"error": {"message": "boom"}}',
        "protocol": "not json",
        "protocol ": '{"choices": [], "usage": {"prompt_tokens": "many", "completion_tokens": 1}}',
    }

    async def misbehave(number: int, _: web.Request) -> web.StreamResponse | None:
        return web.Response(text=f"data: {list(endings.values())[number]}\n\n", content_type="text/event-stream")

    replay = _replay(Stub(fail=misbehave), _sessions(data / "mooncake.jsonl"), _rules(max_sessions=4))
    assert [row.error for row in replay.rows] == [kind.strip() for kind in endings]
    assert "boom" in replay.rows[1].error_message
    assert "expected a count, found 'many'" in replay.rows[3].error_message


def test_versions_that_are_not_numbers_are_left_out(data: Path) -> None:
    async def named(_: int, request: web.Request) -> web.StreamResponse | None:
        body = await request.json()
        span = {"version": "default", "start": 0, "end": body["max_tokens"]}
        pieces = [{"choices": [{"text": "x"}]}] * (body["max_tokens"] - 1)
        pieces.append({"choices": [{"text": "x", "weight_versions": [span]}]})
        text = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces) + "data: [DONE]\n\n"
        return web.Response(text=text, headers={"x-policy-version": "default"}, content_type="text/event-stream")

    replay = _replay(Stub(fail=named), _sessions(data / "mooncake.jsonl"), _rules(max_sessions=2))
    assert [(row.error, row.policy_version, row.version_spans) for row in replay.rows] == [(None, None, [])] * 2
    assert [len(row.arrivals_s) for row in replay.rows] == [3, 2]  # no usage reported: pieces are counted


def test_a_failed_warm_up_stops_before_measuring(data: Path) -> None:
    async def refuse(_: int, __: web.Request) -> web.StreamResponse | None:
        return web.Response(status=500, text="broken")

    (session,) = _sessions(data / "weka_relative.json")
    replay = _replay(Stub(fail=refuse), [session], _rules(start_ratio=(1.0, 1.0)))
    assert replay.ended_by.startswith("warm-up failed: session tiny_relative: http_500: broken")
    assert {row.phase for row in replay.rows} == {"warmup"}


def test_an_interrupt_drains_and_a_second_one_cancels(data: Path) -> None:
    async def interrupt_twice(replay: Replay) -> None:
        await replay.measuring.wait()
        await asyncio.sleep(0.1)
        replay.interrupt()
        await asyncio.sleep(0.1)
        replay.interrupt()

    replay = _replay(
        Stub(ttft_s=5.0), _sessions(data / "mooncake.jsonl"), _rules(concurrency=2), control=interrupt_twice
    )
    assert replay.ended_by == "interrupted"
    assert [row.error for row in replay.rows] == ["cancelled", "cancelled"]


def test_the_servers_hit_rate_never_exceeds_the_theoretical_one(data: Path) -> None:
    stub = Stub()
    sessions = _sessions(data / "weka_relative.json", data / "weka_absolute.json", data / "mooncake.jsonl")
    replay = _replay(stub, sessions, _rules(concurrency=3, max_sessions=12, delay_scale=0.0), cache_bust=True)
    assert replay.counters is not None
    theoretical = sum(row.theoretical_hit_tokens for row in replay.rows)
    assert 0 < replay.counters.gpu_hits <= theoretical
    assert replay.counters.queries == sum(row.input_tokens for row in replay.rows)


def test_the_theoretical_rate_of_a_replay_is_the_hand_computed_one(data: Path) -> None:
    replay = _replay(Stub(), _sessions(data / "weka_relative.json"), _rules(max_sessions=1))
    hits = {(row.agent, row.turn): row.theoretical_hit_tokens for row in replay.rows}
    assert hits == {
        ("root", 0): 0,
        ("root", 1): 64,  # blocks 1-4
        ("root", 2): 96,  # blocks 1-6
        ("root", 3): 32,  # blocks 1-2
        ("agent_001", 0): 0,
        ("agent_001", 1): 32,  # blocks 100, 101
        ("agent_002", 0): 16,  # block 100, that agent_001 brought
    }


@pytest.mark.parametrize("name", ["weka", "mooncake/conversation_400.jsonl", "mooncake/synthetic_200.jsonl"])
def test_public_traces_replay_without_an_error(shared_traces: Path, name: str) -> None:
    sessions = read_traces([shared_traces / name], lambda text: [])
    factor = fitting_scale(sessions, 512)
    ready = [shorten_idle_gaps(scale_context(session, factor), 10.0) for session in sessions]
    stub = Stub(max_model_len=512)
    rules = _rules(concurrency=8, max_sessions=len(ready), delay_scale=0.0)
    replay = _replay(stub, ready, rules, cache_bust=True)
    assert len(replay.rows) == sum(len(session.turns()) for session in sessions)
    assert all(row.ok and row.prompt_tokens == row.input_tokens for row in replay.rows)
    assert all(row.completion_tokens == row.output_tokens for row in replay.rows)
    assert replay.counters is not None
    assert replay.counters.gpu_hits <= sum(row.theoretical_hit_tokens for row in replay.rows)


def _common(first: list[int], second: list[int]) -> int:
    length = min(len(first), len(second))
    differing = np.nonzero(np.array(first[:length]) != np.array(second[:length]))[0]
    return int(differing[0]) if len(differing) else length
