"""One turn on the wire: what is sent for it, and the row that it becomes."""

from __future__ import annotations

import functools
import json
import time
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from bench_agentx.client import Endpoint, Reply
from bench_agentx.plays import Play
from bench_agentx.prompts import Prompt, PromptBuilder
from bench_agentx.rows import Row
from bench_agentx.types import Agent, Turn


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Turn ``index`` of an agent, in one play, on one lane. ``depth``: 0 for the root, 1 for its subagents."""

    play: Play
    lane: int
    agent: Agent
    depth: int
    index: int

    @property
    def turn(self) -> Turn:
        return self.agent.turns[self.index]

    @property
    def headers(self) -> dict[str, str]:
        """Routers of several replicas keep an agent's turns together by this."""
        return {"X-Session-ID": f"{self.play.session.id}-{self.play.number}-{self.agent.name}"}

    def request(self, prompts: PromptBuilder, endpoint: Endpoint) -> tuple[Prompt, bytes]:
        """The prompt as tokens, and the request's body."""
        place = (self.play.session, self.play.number, self.agent, self.index)
        prompt = prompts.prompt(*place)
        if endpoint.type == "completions":
            return prompt, endpoint.body(json_array(prompt.token_ids), self.turn.output_tokens)
        messages = [{"role": message.role, "content": message.content} for message in prompts.messages(*place)]
        return prompt, endpoint.body(json.dumps(messages).encode(), self.turn.output_tokens)

    def row(self, phase: str, origin_s: float, due_s: float, hit_tokens: int, reply: Reply) -> Row:
        """The call's row. ``origin_s``: the instant from which a row's times count."""
        first_s, last_s = (reply.arrivals[0], reply.arrivals[-1]) if reply.arrivals else (None, None)
        output_tokens = reply.completion_tokens or len(reply.arrivals)
        inter_token_ms = None
        if first_s is not None and last_s is not None and output_tokens > 1:
            inter_token_ms = (last_s - first_s) * 1000 / (output_tokens - 1)
        return Row(
            phase=phase,
            session=self.play.session.id,
            play=self.play.number,
            lane=self.lane,
            agent=self.agent.name,
            depth=self.depth,
            turn=self.index,
            due_s=due_s - origin_s,
            sent_s=reply.sent_s - origin_s,
            end_s=time.perf_counter() - origin_s,
            input_tokens=self.turn.input_tokens,
            output_tokens=self.turn.output_tokens,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cached_tokens=reply.cached_tokens,
            theoretical_hit_tokens=hit_tokens,
            time_to_first_token_ms=None if first_s is None else (first_s - reply.sent_s) * 1000,
            inter_token_latency_ms=inter_token_ms,
            request_latency_ms=None if last_s is None else (last_s - reply.sent_s) * 1000,
            status=reply.status,
            error=reply.error,
            error_message=reply.error_message,
            policy_version=reply.policy_version,
            version_spans=[asdict(span) for span in reply.version_spans],
            arrivals_s=[arrived_s - origin_s for arrived_s in reply.arrivals],
        )


def json_array(token_ids: npt.NDArray[np.int64]) -> bytes:
    """Token ids, int64 [tokens], none negative, as a JSON array.

    ``json.dumps`` takes 20 ms for the 110,000 ids of a usual prompt, and nothing else runs meanwhile. Looked up in
    a table of numbers of one width (JSON allows spaces before them) it takes one.
    """
    table = _numbers(1 << int(token_ids.max(initial=0)).bit_length())
    return b"[%s]" % table[token_ids].tobytes()[:-1]


@functools.cache
def _numbers(count: int) -> npt.NDArray[np.bytes_]:
    """The first ``count`` numbers, each with a comma after it, bytes [count] of one width."""
    width = len(str(count))
    return np.array([b"%*d," % (width, number) for number in range(count)])
