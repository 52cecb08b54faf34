"""``bench-agentx``: replay agent sessions against any OpenAI-compatible server, and compare runs."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench_agentx import command_line, offload, tables
from bench_agentx.client_check import check_client
from bench_agentx.progress import Display
from bench_agentx.report import write_report
from bench_agentx.rows import read_rows
from bench_agentx.run import Run, measure, write_run
from bench_agentx.synthetic import write_synthetic
from bench_agentx.traces import describe, read_traces
from bench_agentx.types import TraceError
from bench_agentx.vocabulary import encode
from bench_agentx.workload import ServerError, load_workload

EXIT_INCOMPLETE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 a run that ended early (its report is written), 2 nothing could be run.

    130: interrupted outside of a run, where there is nothing to report.
    """
    parsed = command_line.parser().parse_args(arguments)
    commands = {
        "run": _measure_levels,
        "sweep": _measure_levels,
        "compare": _compare,
        "offload": _offload,
        "synthesize": _synthesize,
        "describe": _describe,
        "overhead": _overhead,
    }
    try:
        return commands[parsed.command](parsed)
    except KeyboardInterrupt:
        print("bench-agentx: interrupted before anything was measured", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (TraceError, ServerError, ValueError, OSError) as error:
        print(f"bench-agentx: {error}", file=sys.stderr)
        return EXIT_USAGE


def _measure_levels(parsed: argparse.Namespace) -> int:
    chosen = command_line.options_of(parsed)
    display = Display()

    async def run_levels() -> list[Run]:
        workload = await load_workload(chosen)
        runs: list[Run] = []
        for concurrency in parsed.concurrency:
            runs.append(await measure(chosen, workload, concurrency, parsed.series, display))
            write_run(parsed.out, runs[-1])
            if not runs[-1].completed:
                break
        return runs

    runs = asyncio.run(run_levels())
    _show(runs, parsed.out, parsed.json)
    return 0 if all(run.completed for run in runs) else EXIT_INCOMPLETE


def _compare(parsed: argparse.Namespace) -> int:
    runs = [Run(*read_rows(path)) for path in parsed.runs]
    _show(runs, parsed.out, parsed.json)
    return 0


def _offload(parsed: argparse.Namespace) -> int:
    chosen = command_line.options_of(parsed)
    plan = offload.OffloadPlan(
        server=(*parsed.server, parsed.model, *parsed.server_arguments),
        kv_tier=parsed.kv_tier,
        concurrencies=parsed.concurrency,
        repeats=parsed.repeats,
        ready_timeout_s=parsed.ready_timeout_s,
    )
    chosen = dataclasses.replace(chosen, model=None)  # the only one that the child serves
    runs = asyncio.run(
        offload.measure_offload(plan, chosen, parsed.out, Display(), lambda run: write_run(parsed.out, run))
    )
    rows = offload.offload_rows(runs)
    (parsed.out / "offload.json").write_text(json.dumps(rows, indent=2) + "\n")
    write_report(parsed.out / "report.html", "Host KV tier off and on", runs)
    _print_remarks(runs)
    if parsed.json:
        print(json.dumps(rows, indent=2))
    else:
        Console().print(offload.offload_table(rows))
    return 0 if all(run.completed for run in runs) else EXIT_INCOMPLETE


def _synthesize(parsed: argparse.Namespace) -> int:
    write_synthetic(parsed.out, parsed.sessions, parsed.seed)
    print(f"{parsed.sessions} WEKA sessions in {parsed.out}")
    return 0


def _describe(parsed: argparse.Namespace) -> int:
    sessions = read_traces(parsed.trace, lambda text: encode(parsed.tokenizer, text))
    print(json.dumps(dataclasses.asdict(describe(sessions)), indent=2))
    return 0


def _overhead(parsed: argparse.Namespace) -> int:
    print(json.dumps(asyncio.run(check_client(parsed.streams, parsed.duration_s, Display())), indent=2))
    return 0


def _show(runs: Sequence[Run], out: Path, as_json: bool) -> None:
    report = out / "report.html"
    write_report(report, "bench-agentx", runs)
    _print_remarks(runs)
    if as_json:
        print(json.dumps([run.summary for run in runs], indent=2))
    else:
        Console().print(tables.table(runs))
        print(f"report: {report}")


def _print_remarks(runs: Sequence[Run]) -> None:
    for run in runs:
        for note in tables.remarks(run):
            print(f"{run.summary['label']}: {note}", file=sys.stderr)
