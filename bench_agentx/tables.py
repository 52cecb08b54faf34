"""Runs as tables: the same rows on a terminal and in the HTML report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from bench_agentx.overhead import BUSY_CPU_SHARE
from bench_agentx.run import Run

Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of a table: a name, how to find its number in a summary, and how it is written."""

    name: str
    find: Callable[[Summary], float | None]
    format: str = "{:.1f}"

    def text(self, summary: Summary) -> str:
        value = self.find(summary)
        return "-" if value is None else self.format.format(value)


def _part(name: str, part: str, format_: str = "{:.1f}") -> Measure:
    def find(summary: Summary) -> float | None:
        values = summary[name]
        return None if values is None else values.get(part)

    return Measure(f"{name} {part}", find, format_)


def _plain(name: str, format_: str = "{:.1f}") -> Measure:
    return Measure(name, lambda summary: summary[name], format_)


MEASURES = (
    _plain("concurrency", "{:.0f}"),
    _plain("benchmark_duration_s"),
    _plain("request_count", "{:.0f}"),
    _plain("error_request_count", "{:.0f}"),
    _plain("output_token_throughput"),
    _plain("output_token_throughput_per_gpu"),
    _plain("total_token_throughput"),
    _plain("cache_hit_rate", "{:.1%}"),
    _plain("gpu_cache_hit_rate", "{:.1%}"),
    _plain("host_cache_hit_rate", "{:.1%}"),
    _plain("theoretical_cache_hit_rate", "{:.1%}"),
    _part("e2e_normalized_interactivity_tok_s_user", "p90"),
    _part("interactivity_tok_s_user", "p90"),
    _part("time_to_first_token_ms", "p50"),
    _part("time_to_first_token_ms", "p90"),
    _part("inter_token_latency_ms", "p50", "{:.2f}"),
    _part("inter_token_latency_ms", "p90", "{:.2f}"),
    _part("request_latency_ms", "p50"),
    _part("request_latency_ms", "p90"),
    _part("input_sequence_length", "p50", "{:.0f}"),
    _part("output_sequence_length", "p50", "{:.0f}"),
    _part("client", "cpu_share", "{:.1%}"),
    _part("client", "loop_lag_ms_p99", "{:.2f}"),
    _part("dispatch_lateness_ms", "p99", "{:.2f}"),
)


def cells(runs: Sequence[Run]) -> list[list[str]]:
    """A line for each measure: its name, its text in each run, and the last run's ratio to the first."""
    lines = []
    for measure in MEASURES:
        line = [measure.name, *(measure.text(run.summary) for run in runs)]
        if len(runs) > 1:
            first, last = measure.find(runs[0].summary), measure.find(runs[-1].summary)
            line.append(f"{last / first:.2f}x" if first and last is not None else "-")
        lines.append(line)
    return lines


def heading(runs: Sequence[Run]) -> list[str]:
    labels = [run.summary["label"] for run in runs]
    return ["", *labels, *(["last / first"] if len(runs) > 1 else [])]


def remarks(run: Run) -> list[str]:
    """What a reader must know before trusting a run's numbers."""
    summary = run.summary
    found = [f"{count} x {error}" for error, count in summary["errors"].items()]
    notes = []
    if found:
        notes.append(f"errors: {', '.join(found)}")
    if not run.completed:
        notes.append(f"ended early: {summary['ended_by']}")
    if summary["client"]["cpu_share"] > BUSY_CPU_SHARE:
        notes.append("the client used a whole core: its latencies are partly its own")
    lengths = {"output": summary["osl_mismatch_count"]}
    if summary["options"]["endpoint_type"] == "completions":  # chat templates add tokens of their own
        lengths["prompt"] = summary["isl_mismatch_count"]
    for kind, count in lengths.items():
        if count:
            notes.append(f"{count} requests whose {kind} length, as the server counts, is not the trace's")
    if summary["sessions_dropped"]:
        notes.append(f"{summary['sessions_dropped']} sessions longer than the server's context left out")
    if not summary["submission_valid"]:
        notes.append("not an AgentX submission: " + "; ".join(summary["submission_invalid_reasons"]))
    return notes


def table(runs: Sequence[Run]) -> Table:
    """The comparison for a terminal."""
    result = Table(box=None)
    for number, title in enumerate(heading(runs)):
        result.add_column(title, justify="left" if number == 0 else "right", no_wrap=number == 0, overflow="fold")
    for line in cells(runs):
        result.add_row(*line)
    return result
