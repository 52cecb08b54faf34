"""Synthetic agent sessions of the shape that is published for coding agents, as WEKA documents.

Over requests: input median ~110k and P90 ~300k tokens, output median ~218, think time median 10 s, ~96% of
input tokens already seen in the same conversation; one tools-and-system prefix shared by all sessions, another
by all subagents. Seeded: the same arguments give the same documents.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bench_agentx.types import Session
from bench_agentx.weka import parse_weka

BLOCK_TOKENS = 64
_PREFIX_TOKENS = 14_336
_SUBAGENT_PREFIX_TOKENS = 9_984
_TURNS_MEDIAN, _TURNS_SIGMA = 52, 0.25
_PEAK_TOKENS_MEDIAN, _PEAK_TOKENS_SIGMA = 252_000, 0.50
_OUTPUT_MEDIAN, _OUTPUT_SIGMA = 218, 0.9
_THINK_S_MEDIAN, _THINK_S_SIGMA = 10.0, 1.0
_SUBAGENTS_MEAN = 0.8
_SUBAGENT_TURNS_MEDIAN, _SUBAGENT_PEAK_TOKENS_MEDIAN = 9, 60_000
_SECONDS_PER_OUTPUT_TOKEN = 1 / 60
_IDS_PER_SESSION = 1 << 32


def synthetic_sessions(count: int, seed: int) -> tuple[Session, ...]:
    """``count`` sessions, parsed as a file of them would be."""
    documents = synthetic_documents(count, seed)
    return tuple(parse_weka(document, f"synthetic session {index}") for index, document in enumerate(documents))


def write_synthetic(directory: Path, count: int, seed: int) -> None:
    """``count`` WEKA files in a directory, made if it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    for document in synthetic_documents(count, seed):
        (directory / f"{document['id']}.json").write_text(json.dumps(document))


def synthetic_documents(count: int, seed: int) -> list[dict[str, Any]]:
    return [_SessionWriter(index, np.random.default_rng((seed, index))).document() for index in range(count)]


class _SessionWriter:
    """One session: its random stream, and the block ids that only it uses."""

    def __init__(self, index: int, random: np.random.Generator) -> None:
        self._index = index
        self._random = random
        self._next_id = (index + 1) * _IDS_PER_SESSION

    def document(self) -> dict[str, Any]:
        turns = round(self._lognormal(_TURNS_MEDIAN, _TURNS_SIGMA))
        peak_tokens = self._lognormal(_PEAK_TOKENS_MEDIAN, _PEAK_TOKENS_SIGMA)
        calls = self._calls(max(2, turns), peak_tokens, _PREFIX_TOKENS, prefix_ids_from=0, start_s=0.0)
        launched_by = sorted(self._random.integers(0, len(calls) - 1, self._random.poisson(_SUBAGENTS_MEAN)))
        subagents = [self._subagent(calls, int(call), number) for number, call in enumerate(launched_by)]
        return {
            "id": f"synthetic_{self._index:05d}",
            "models": ["synthetic"],
            "block_size": BLOCK_TOKENS,
            "hash_id_scope": "global",
            "tool_tokens": _PREFIX_TOKENS,
            "system_tokens": 0,
            "requests": sorted(calls + subagents, key=lambda entry: float(entry["t"])),
        }

    def _subagent(self, calls: list[dict[str, Any]], launched_by: int, number: int) -> dict[str, Any]:
        """A subagent that one call launches and the next one waits for (what follows is moved back)."""
        start_s = calls[launched_by]["t"] + calls[launched_by]["api_time"]
        turns = max(2, round(self._lognormal(_SUBAGENT_TURNS_MEDIAN, 0.5)))
        peak_tokens = self._lognormal(_SUBAGENT_PEAK_TOKENS_MEDIAN, 0.4)
        inner = self._calls(turns, peak_tokens, _SUBAGENT_PREFIX_TOKENS, prefix_ids_from=1 << 20, start_s=start_s)
        end_s = inner[-1]["t"] + inner[-1]["api_time"]
        later_s = max(0.0, end_s + 1.0 - calls[launched_by + 1]["t"])
        for call in calls[launched_by + 1 :]:
            call["t"] += later_s
        return {
            "t": start_s,
            "type": "subagent",
            "agent_id": f"agent_{number + 1:03d}",
            "subagent_type": "Explore",
            "duration_ms": round((end_s - start_s) * 1000),
            "status": "completed",
            "models": ["synthetic"],
            "tool_tokens": _SUBAGENT_PREFIX_TOKENS,
            "system_tokens": 0,
            "requests": inner,
        }

    def _calls(
        self, turns: int, peak_tokens: float, prefix_tokens: int, *, prefix_ids_from: int, start_s: float
    ) -> list[dict[str, Any]]:
        """Calls over one context that grows from the prefix to ``peak_tokens``, in uneven steps."""
        ids = list(range(prefix_ids_from, prefix_ids_from + prefix_tokens // BLOCK_TOKENS))
        steps = self._random.lognormal(0.0, 1.0, turns)
        steps *= max(peak_tokens - prefix_tokens, BLOCK_TOKENS * turns) / steps.sum()
        calls: list[dict[str, Any]] = []
        time_s, input_tokens, answered_tokens = start_s, float(prefix_tokens), 0
        for step in steps:
            # at least a block is new: what the call before left over, its answer, and the tool's result
            input_tokens += max(float(step), answered_tokens + BLOCK_TOKENS)
            new_blocks = int(input_tokens) // BLOCK_TOKENS - len(ids)
            ids.extend(range(self._next_id, self._next_id + new_blocks))
            self._next_id += new_blocks
            answered_tokens = max(1, round(self._lognormal(_OUTPUT_MEDIAN, _OUTPUT_SIGMA)))
            service_s = 1.0 + answered_tokens * _SECONDS_PER_OUTPUT_TOKEN
            calls.append(
                {
                    "t": time_s,
                    "type": "n",
                    "model": "synthetic",
                    "in": int(input_tokens),
                    "out": answered_tokens,
                    "hash_ids": list(ids),
                    "api_time": service_s,
                }
            )
            time_s += service_s + self._lognormal(_THINK_S_MEDIAN, _THINK_S_SIGMA)
        return calls

    def _lognormal(self, median: float, sigma: float) -> float:
        return float(median * self._random.lognormal(0.0, sigma))
