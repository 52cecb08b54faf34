"""Rows into the numbers that AgentX and aiperf report, under their names.

Definitions (aiperf's ``metrics/types``, InferenceX' result schema): only requests without error count, except
for the counts; request latency runs from sending to the last token, ITL is ``(latency - TTFT) / (OSL - 1)`` of
a request, which vLLM calls TPOT; interactivity is a percentile's inverse, ``1 / p(ITL)``, so p90 is the slow
tail; E2E-normalised interactivity is ``1 / p(latency / OSL)``. Throughputs are over the time from the first
request sent to the last token received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bench_agentx.counters import CacheCounters
from bench_agentx.rows import Row

_PERCENTILES = (50, 75, 90, 95, 99)


def request_metrics(rows: Sequence[Row], devices: int) -> dict[str, Any]:
    """The metrics of the measured rows. ``devices``: what throughput "per GPU" is divided by."""
    ok = [row for row in rows if row.ok]
    duration_s = _duration_s(ok)
    output_tokens = sum(_output_tokens(row) for row in ok)
    input_tokens = sum(_input_tokens(row) for row in ok)
    itl_ms = [row.inter_token_latency_ms for row in ok if row.inter_token_latency_ms]
    s_per_token = [
        row.request_latency_ms / 1000 / _output_tokens(row)
        for row in ok
        if row.request_latency_ms and _output_tokens(row)
    ]
    gaps_ms = [gap * 1000 for row in ok for gap in np.diff(row.arrivals_s)]
    errors = Counter(row.error for row in rows if row.error is not None)
    return {
        "benchmark_duration_s": duration_s,
        "request_count": len(ok),
        "error_request_count": len(rows) - len(ok),
        "errors": dict(sorted(errors.items())),
        "session_count": len({row.play for row in rows}),
        "time_to_first_token_ms": _distribution(row.time_to_first_token_ms for row in ok),
        "inter_token_latency_ms": _distribution(itl_ms),
        "time_per_output_token_ms": _distribution(itl_ms),
        "inter_chunk_latency_ms": _distribution(gaps_ms),
        "request_latency_ms": _distribution(row.request_latency_ms for row in ok),
        "interactivity_tok_s_user": _inverse_tail([value / 1000 for value in itl_ms]),
        "e2e_normalized_interactivity_tok_s_user": _inverse_tail(s_per_token),
        "output_token_throughput": _rate(output_tokens, duration_s),
        "output_token_throughput_per_gpu": _rate(output_tokens, duration_s * devices),
        "input_token_throughput": _rate(input_tokens, duration_s),
        "total_token_throughput": _rate(input_tokens + output_tokens, duration_s),
        "request_throughput": _rate(len(ok), duration_s),
        "input_sequence_length": _distribution(_input_tokens(row) for row in ok),
        "output_sequence_length": _distribution(_output_tokens(row) for row in ok),
        "isl_mismatch_count": sum(row.prompt_tokens not in (None, row.input_tokens) for row in ok),
        "osl_mismatch_count": sum(row.completion_tokens not in (None, row.output_tokens) for row in ok),
        "dispatch_lateness_ms": _distribution(max(0.0, row.sent_s - row.due_s) * 1000 for row in rows),
    }


def cache_metrics(rows: Sequence[Row], counters: CacheCounters | None) -> dict[str, float | None]:
    """Hit rates over prompt tokens, 0 to 1. The server's are None where it has no such counters."""
    ok = [row for row in rows if row.ok]
    asked = sum(row.input_tokens for row in ok)
    metrics: dict[str, float | None] = {
        "theoretical_cache_hit_rate": sum(row.theoretical_hit_tokens for row in ok) / asked if asked else None,
        "gpu_cache_hit_rate": None,
        "host_cache_hit_rate": None,
        "cache_hit_rate": None,
    }
    if counters is not None and counters.queries > 0:
        metrics["gpu_cache_hit_rate"] = counters.gpu_hits / counters.queries
        metrics["host_cache_hit_rate"] = counters.host_hits / counters.queries
        metrics["cache_hit_rate"] = (counters.gpu_hits + counters.host_hits) / counters.queries
    return metrics


def _duration_s(rows: Sequence[Row]) -> float:
    if not rows:
        return 0.0
    last_s = max(row.arrivals_s[-1] if row.arrivals_s else row.end_s for row in rows)
    return last_s - min(row.sent_s for row in rows)


def _output_tokens(row: Row) -> int:
    return row.completion_tokens if row.completion_tokens is not None else len(row.arrivals_s)


def _input_tokens(row: Row) -> int:
    return row.prompt_tokens if row.prompt_tokens is not None else row.input_tokens


def _rate(amount: float, duration_s: float) -> float:
    return amount / duration_s if duration_s > 0 else 0.0


def _distribution(values: Iterable[float | None]) -> dict[str, float] | None:
    found = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(found):
        return None
    named = {f"p{p}": float(value) for p, value in zip(_PERCENTILES, np.percentile(found, _PERCENTILES), strict=True)}
    spread = {"avg": found.mean(), "min": found.min(), "max": found.max(), "std": found.std()}
    return {**{name: float(value) for name, value in spread.items()}, **named}


def _inverse_tail(seconds_per_token: Sequence[float]) -> dict[str, float] | None:
    """Tokens per second and user at each percentile of time per token: the higher, the slower."""
    if not seconds_per_token:
        return None
    values = np.percentile(seconds_per_token, _PERCENTILES)
    inverse = {f"p{p}": float(1 / value) for p, value in zip(_PERCENTILES, values, strict=True) if value > 0}
    return {"avg": float(1 / np.mean(seconds_per_token)), **inverse}
