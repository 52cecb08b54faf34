"""The replay: lanes of session trees against one endpoint, by AgentX's rules.

* Concurrency is the number of live session trees. A lane takes the next session when the tree it holds, every
  subagent included, has ended.
* A turn is due its recorded time after what it waits for has ended: the turn before it, and the subagents that
  join there. (Idle time was capped when the session was read, see ``timeline``.)
* The first session of each lane starts somewhere midway; the turn before that point is sent in the warm-up, so
  that measuring begins with a warm cache. Later ones run whole.
* A failed turn is counted and the session goes on; one that no longer fits the context ends its session.
* After ``duration_s`` nothing new is sent; what is under way has ``grace_period_s`` to finish.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench_agentx.calls import Call
from bench_agentx.client import Client, Reply
from bench_agentx.counters import CacheCounters, parse_counters
from bench_agentx.plays import Order, Play, endless_plays, started_midway
from bench_agentx.prefix_cache import EndlessPrefixCache
from bench_agentx.prompts import Prompt, PromptBuilder
from bench_agentx.rows import Row
from bench_agentx.types import Agent, Session

_BUILD_LEAD_S = 0.02
"""A prompt is built this long before it is due, so that building does not delay it."""
_ERROR_WAIT_S = 0.5
"""A stream waits this long after a failure that names no Retry-After: a dead server is not hammered."""
_LONGEST_RETRY_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class Rules:
    """How to replay. Times in seconds; ``delay_scale`` multiplies every recorded delay."""

    concurrency: int
    duration_s: float
    seed: int
    order: Order = "shuffled"
    start_ratio: tuple[float, float] = (0.0, 1.0)
    max_sessions: int | None = None
    delay_scale: float = 1.0
    grace_period_s: float = 30.0


class Anchor(NamedTuple):
    """One instant on two clocks: the session's recorded one, and this process's."""

    recorded_s: float
    real_s: float

    def latest(self, other: Anchor) -> Anchor:
        return Anchor(max(self.recorded_s, other.recorded_s), max(self.real_s, other.real_s))


@dataclass(slots=True)
class Progress:
    """What a display shows while the replay runs."""

    phase: str = "warmup"
    started_s: float = 0.0
    in_flight: int = 0
    live_sessions: int = 0
    finished_sessions: int = 0
    completed_requests: int = 0
    output_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Tree:
    """A live session tree: its play, its lane, and the group its streams run in."""

    play: Play
    lane: int
    group: asyncio.TaskGroup
    ended: bool = False


class Replay:
    """One run: call ``run`` once; ``rows`` and ``counters`` are there afterwards, whatever ended it.

    ``cache`` has what this server has seen already.
    """

    def __init__(
        self,
        rules: Rules,
        sessions: Sequence[Session],
        client: Client,
        prompts: PromptBuilder,
        cache: EndlessPrefixCache,
    ) -> None:
        self.rules = rules
        self.progress = Progress()
        self.rows: list[Row] = []
        self.counters: CacheCounters | None = None
        self.ended_by = ""
        self._client = client
        self._prompts = prompts
        self._cache = cache
        self._plays = itertools.islice(endless_plays(sessions, rules.order, rules.seed), rules.max_sessions or None)
        self.measuring = asyncio.Event()
        self._stop = asyncio.Event()
        self._lanes: list[asyncio.Task[None]] = []
        self._lost_in_a_row = 0

    def stop(self, reason: str) -> None:
        """Send nothing new; what is under way may finish. The first reason counts."""
        self.ended_by = self.ended_by or reason
        self._stop.set()

    def interrupt(self) -> None:
        """The user's stop. Asked again, it gives up what is under way."""
        if self._stop.is_set():
            for lane in self._lanes:
                lane.cancel()
        self.stop("interrupted")

    async def run(self) -> None:
        """Warm up, then replay until the duration is over, the sessions are, or the server is lost."""
        first_plays = list(itertools.islice(self._plays, self.rules.concurrency))
        if self.rules.order != "recorded":
            first_plays = [started_midway(play, self.rules.start_ratio, self.rules.seed) for play in first_plays]
        await self._warm_up(first_plays)
        if self._stop.is_set():
            return
        before = await self._read_counters()
        self.progress.phase = "profiling"
        self.progress.started_s = time.perf_counter()
        self.measuring.set()
        timer = asyncio.get_running_loop().call_later(self.rules.duration_s, self.stop, "duration")
        self._lanes = [asyncio.create_task(self._lane(lane, play)) for lane, play in enumerate(first_plays)]
        await self._finish(self._lanes, self.rules.grace_period_s)
        timer.cancel()
        self.ended_by = self.ended_by or "sessions"
        after = await self._read_counters()
        self.counters = after.since(before) if before and after else None

    async def _finish(self, tasks: list[asyncio.Task[None]], grace_period_s: float) -> None:
        """Wait for tasks; once the run is stopped, for ``grace_period_s`` more, and cancel what is left."""
        running = set(tasks)
        watch = asyncio.create_task(self._watch_stop())
        while running and not self._stop.is_set():
            done, _ = await asyncio.wait({*running, watch}, return_when=asyncio.FIRST_COMPLETED)
            running -= done
            if any(not task.cancelled() and task.exception() for task in done):
                break  # a defect of this program: give up
        watch.cancel()
        if running:
            await asyncio.wait(running, timeout=grace_period_s)
            for task in running:
                task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _watch_stop(self) -> None:
        await self._stop.wait()

    async def _warm_up(self, plays: list[Play]) -> None:
        """Send the turn before each play's start, of the root and of every subagent that is under way."""
        self.progress.started_s = time.perf_counter()
        calls = [
            Call(play, lane, agent, depth, play.first_turn(agent) - 1)
            for lane, play in enumerate(plays)
            for depth, agent in _agents_by_depth(play.session.root)
            if 0 < play.first_turn(agent) < len(agent.turns)
        ]
        await self._finish([asyncio.create_task(self._warm(call)) for call in calls], grace_period_s=0.0)
        failed = next((row for row in self.rows if row.depth == 0 and not row.ok), None)
        if failed is not None:
            self.stop(f"warm-up failed: session {failed.session}: {failed.error}: {failed.error_message}")

    async def _warm(self, call: Call) -> None:
        request = call.request(self._prompts, self._client.endpoint)
        await self._send(call, time.perf_counter(), *request)

    async def _lane(self, lane: int, play: Play | None) -> None:
        while play is not None and not self._stop.is_set():
            if self.rules.order == "recorded":
                start_s = self.progress.started_s + play.session.start_s * self.rules.delay_scale
                await self._sleep_until(start_s)
            self.progress.live_sessions += 1
            try:
                async with asyncio.TaskGroup() as group:
                    tree = _Tree(play, lane, group)
                    anchor = Anchor(play.start_at_s, time.perf_counter())
                    group.create_task(self._stream(tree, play.session.root, 0, anchor))
            finally:
                self.progress.live_sessions -= 1
            self.progress.finished_sessions += 1
            play = next(self._plays, None)

    async def _stream(self, tree: _Tree, agent: Agent, depth: int, anchor: Anchor) -> Anchor:
        """Replay one agent from where the play starts; the instant at which it and its subagents ended."""
        first = tree.play.first_turn(agent)
        subagents: dict[int, asyncio.Task[Anchor]] = {}

        def spawn_after(turns: range) -> None:
            for number, spawn in enumerate(agent.spawns):
                if spawn.after_turn in turns:
                    stream = self._stream(tree, spawn.agent, depth + 1, anchor)
                    subagents[number] = tree.group.create_task(stream)

        spawn_after(range(first))
        for index in range(first, len(agent.turns)):
            turn = agent.turns[index]
            for number, spawn in enumerate(agent.spawns):
                if spawn.join_turn == index and number in subagents:
                    anchor = anchor.latest(await subagents[number])
            delay_s = max(0.0, turn.start_s - anchor.recorded_s) * self.rules.delay_scale
            due_s = anchor.real_s + delay_s
            await self._sleep_until(due_s - _BUILD_LEAD_S)
            if self._stop.is_set() or tree.ended:
                break
            call = Call(tree.play, tree.lane, agent, depth, index)
            prompt, body = call.request(self._prompts, self._client.endpoint)
            await self._sleep_until(due_s)
            if self._stop.is_set() or tree.ended:
                break
            row, retry_s = await self._send(call, due_s, prompt, body)
            tree.ended = tree.ended or row.error == "context_overflow"
            anchor = Anchor(turn.end_s, time.perf_counter() + retry_s)
            spawn_after(range(index, index + 1))
        for subagent in subagents.values():
            anchor = anchor.latest(await subagent)
        return anchor

    async def _send(self, call: Call, due_s: float, prompt: Prompt, body: bytes) -> tuple[Row, float]:
        """Send one turn; its row, and how long the stream has to hold back after it."""
        hit_tokens = self._cache.admit(prompt)
        reply = Reply()
        self.progress.in_flight += 1
        try:
            await self._client.send(body, call.headers, reply)
        except asyncio.CancelledError:
            reply.fail("cancelled", "still running when the run ended")
            raise
        finally:
            self.progress.in_flight -= 1
            row = call.row(self.progress.phase, self.progress.started_s, due_s, hit_tokens, reply)
            self.rows.append(row)
            self._count(row)
        if row.ok:
            return row, 0.0
        return row, min(reply.retry_after_s or _ERROR_WAIT_S, _LONGEST_RETRY_AFTER_S)

    def _count(self, row: Row) -> None:
        lost = row.error in ("connect", "disconnected")
        self._lost_in_a_row = self._lost_in_a_row + 1 if lost else 0
        if self._lost_in_a_row >= max(20, 3 * self.rules.concurrency):
            self.stop(f"server lost: {self._lost_in_a_row} requests in a row failed: {row.error_message}")
        if row.error is not None:
            self.progress.errors[row.error] += 1
        else:
            self.progress.completed_requests += 1
            self.progress.output_tokens += row.completion_tokens or 0

    async def _read_counters(self) -> CacheCounters | None:
        text = await self._client.get_text("/metrics")
        return parse_counters(text) if text is not None else None

    async def _sleep_until(self, real_s: float) -> None:
        """Until an instant of ``time.perf_counter``, or until the run stops."""
        delay_s = real_s - time.perf_counter()
        if delay_s > 0 and not self._stop.is_set():
            try:
                async with asyncio.timeout(delay_s):
                    await self._stop.wait()
            except TimeoutError:
                return


def _agents_by_depth(root: Agent) -> Iterator[tuple[int, Agent]]:
    level, depth = [root], 0
    while level:
        yield from ((depth, agent) for agent in level)
        level, depth = [spawn.agent for agent in level for spawn in agent.spawns], depth + 1
