"""Numbers: the field's definitions on rows small enough to compute by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from bench_agentx.counters import CacheCounters, parse_counters
from bench_agentx.metrics import cache_metrics, request_metrics
from bench_agentx.policy import PolicyUpdate, policy_summary
from bench_agentx.rows import Row, read_rows, write_rows


def row(sent_s: float, ttft_s: float, itl_s: float, tokens: int, **changes: object) -> Row:
    arrivals = [sent_s + ttft_s + index * itl_s for index in range(tokens)]
    made = Row(
        phase="profiling",
        session="s",
        play=0,
        lane=0,
        agent="root",
        depth=0,
        turn=0,
        due_s=sent_s,
        sent_s=sent_s,
        end_s=arrivals[-1],
        input_tokens=100,
        output_tokens=tokens,
        prompt_tokens=100,
        completion_tokens=tokens,
        cached_tokens=None,
        theoretical_hit_tokens=60,
        time_to_first_token_ms=ttft_s * 1000,
        inter_token_latency_ms=itl_s * 1000 if tokens > 1 else None,
        request_latency_ms=(arrivals[-1] - sent_s) * 1000,
        status=200,
        error=None,
        error_message="",
        policy_version=None,
        version_spans=[],
        arrivals_s=arrivals,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


FAILED = row(0.0, 9.0, 9.0, 2, error="http_503", completion_tokens=None, time_to_first_token_ms=None)


def test_latencies_throughput_and_counts() -> None:
    rows = [row(1.0, 0.5, 0.1, 11), row(2.0, 1.0, 0.2, 6), FAILED]  # latencies 1.5 s and 2.0 s
    metrics = request_metrics(rows, devices=2)
    assert metrics["benchmark_duration_s"] == pytest.approx(3.0)  # first sent at 1, last token at 4
    assert metrics["request_count"] == 2
    assert metrics["error_request_count"] == 1
    assert metrics["errors"] == {"http_503": 1}
    assert metrics["output_token_throughput"] == pytest.approx(17 / 3)
    assert metrics["output_token_throughput_per_gpu"] == pytest.approx(17 / 6)
    assert metrics["total_token_throughput"] == pytest.approx(217 / 3)
    assert metrics["time_to_first_token_ms"]["avg"] == pytest.approx(750)
    assert metrics["inter_token_latency_ms"]["max"] == pytest.approx(200)
    assert metrics["request_latency_ms"]["p50"] == pytest.approx(1750)
    assert metrics["inter_chunk_latency_ms"]["avg"] == pytest.approx((10 * 100 + 5 * 200) / 15)


def test_interactivity_is_the_inverse_of_a_percentile_not_a_percentile_of_inverses() -> None:
    rows = [row(0.0, 0.1, itl_s, 21) for itl_s in (0.01, 0.02, 0.05, 0.1)]
    metrics = request_metrics(rows, devices=1)
    itl_s = [0.01, 0.02, 0.05, 0.1]
    assert metrics["interactivity_tok_s_user"]["p90"] == pytest.approx(1 / np.percentile(itl_s, 90))
    per_token = [(0.1 + 20 * value) / 21 for value in itl_s]
    normalised = metrics["e2e_normalized_interactivity_tok_s_user"]
    assert normalised["p90"] == pytest.approx(1 / np.percentile(per_token, 90))
    assert normalised["p90"] < normalised["p50"]


def test_a_run_of_nothing_but_failures_has_counts_and_no_latencies() -> None:
    metrics = request_metrics([FAILED], devices=1)
    assert metrics["error_request_count"] == 1
    assert metrics["time_to_first_token_ms"] is None
    assert metrics["output_token_throughput"] == 0.0


def test_lengths_that_differ_from_the_trace_are_counted() -> None:
    rows = [row(0.0, 0.1, 0.1, 5, prompt_tokens=101), row(0.0, 0.1, 0.1, 5, output_tokens=6)]
    metrics = request_metrics(rows, devices=1)
    assert (metrics["isl_mismatch_count"], metrics["osl_mismatch_count"]) == (1, 1)


def test_hit_rates_are_shares_of_the_tokens_asked() -> None:
    rows = [row(0.0, 0.1, 0.1, 2), row(0.0, 0.1, 0.1, 2, theoretical_hit_tokens=20)]
    metrics = cache_metrics(rows, CacheCounters(queries=200, gpu_hits=30, host_hits=40))
    assert metrics == {
        "theoretical_cache_hit_rate": 0.4,
        "gpu_cache_hit_rate": 0.15,
        "host_cache_hit_rate": 0.2,
        "cache_hit_rate": 0.35,
    }
    assert cache_metrics(rows, None)["cache_hit_rate"] is None


def test_counters_are_read_as_prometheus_writes_them_and_summed_over_engines() -> None:
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "other", registry=registry).set(3)
    for name, values in {"prefix_cache_queries": (70, 30), "prefix_cache_hits": (20, 5)}.items():
        counter = Counter(f"vllm:{name}", name, ["engine"], registry=registry)
        for engine, value in enumerate(values):
            counter.labels(str(engine)).inc(value)
    assert parse_counters(generate_latest(registry).decode()) == CacheCounters(queries=100, gpu_hits=25, host_hits=0)
    assert parse_counters("other_metric 1\n") is None


def test_rows_and_summary_survive_parquet(tmp_path: Path) -> None:
    rows = [row(0.0, 0.1, 0.1, 3, version_spans=[{"version": 2, "start": 0, "end": 3}], policy_version=2), FAILED]
    write_rows(tmp_path / "a.parquet", rows, {"label": "a", "nested": {"x": [1, None]}})
    assert read_rows(tmp_path / "a.parquet") == (rows, {"label": "a", "nested": {"x": [1, None]}})


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("hello")
    with pytest.raises(ValueError, match="not a Parquet file"):
        read_rows(tmp_path / "a.parquet")


def _spans(*bounds: tuple[int, int, int]) -> list[dict[str, int]]:
    return [{"version": version, "start": start, "end": end} for version, start, end in bounds]


def test_tokens_are_counted_by_version_and_by_how_stale_they_were() -> None:
    rows = [
        row(0.0, 0.1, 0.1, 10, version_spans=_spans((1, 0, 10))),  # ended at 1.0, version 1 the newest then
        row(0.5, 0.1, 0.2, 10, version_spans=_spans((1, 0, 4), (2, 4, 10))),  # 2 first seen at 1.4, ended at 2.4
        row(2.0, 0.1, 0.1, 5, policy_version=2, version_spans=[]),
    ]
    summary = policy_summary(rows, [])
    assert summary is not None
    assert summary["tokens_by_version"] == {"1": 14, "2": 11}
    assert summary["tokens_by_staleness"] == {"0": 21, "1": 4}
    assert summary["staleness_avg"] == pytest.approx(4 / 25)
    assert summary["versions_live_s"]["2"] == pytest.approx(1.4)


def test_a_pause_is_the_gap_at_a_streams_version_boundary() -> None:
    stream = row(0.0, 0.1, 0.1, 6, version_spans=_spans((1, 0, 3), (2, 3, 6)))
    paused = replace(stream, arrivals_s=[0.1, 0.2, 0.3, 0.75, 0.85, 0.95])
    summary = policy_summary([paused], [])
    assert summary is not None
    assert summary["pause_ms"] == {"version 2": {"streams": 1, "p50": pytest.approx(450), "max": pytest.approx(450)}}


def test_without_spans_a_pause_is_the_longest_gap_around_an_update_asked_for() -> None:
    rows = [replace(row(0.0, 0.1, 0.1, 4), arrivals_s=[0.1, 0.2, 0.7, 0.8]), row(0.0, 0.1, 0.01, 3)]
    summary = policy_summary(rows, [PolicyUpdate(0.25, 0.6, 200, {"version": 3}), PolicyUpdate(5.0, 5.1, 0, "gone")])
    assert summary is not None
    assert summary["pause_ms"] == {"update 0": {"streams": 1, "p50": pytest.approx(500), "max": pytest.approx(500)}}
    assert (summary["updates_asked"], summary["updates_failed"]) == (2, 1)


def test_a_server_without_versions_has_no_policy_section() -> None:
    assert policy_summary([row(0.0, 0.1, 0.1, 2)], []) is None
