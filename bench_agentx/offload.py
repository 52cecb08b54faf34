"""What the host KV tier buys: the same replay against ``rollout-serve`` with its tier off, then on."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench_agentx.child_server import child_server, free_port
from bench_agentx.progress import Display
from bench_agentx.run import Run, measure
from bench_agentx.workload import Options, load_workload


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """``server``: command and its first arguments, e.g. ``rollout-serve MODEL``; ``kv_tier``: the size of "on"."""

    server: tuple[str, ...]
    kv_tier: str
    concurrencies: tuple[int, ...]
    repeats: int
    ready_timeout_s: float

    def command(self, tier: str, port: int) -> list[str]:
        return [*self.server, "--kv-tier", tier, "--port", str(port)]


async def measure_offload(
    plan: OffloadPlan, options: Options, out: Path, display: Display, keep: Callable[[Run], object]
) -> list[Run]:
    """Every run, tier off first. Repeat r of each concurrency draws sessions and starts by seed + r in both.

    ``keep`` gets each run as it ends, so that a later failure loses nothing. Stops early after a run that did
    not complete. Raises ServerError when a server does not start.
    """
    runs: list[Run] = []
    for tier in ("off", plan.kv_tier):
        series = "tier-off" if tier == "off" else "tier-on"
        port = free_port()
        command = plan.command(tier, port)
        display.console.print(f"starting {shlex.join(command)}")
        async with child_server(command, port, out / f"{series}.log", plan.ready_timeout_s) as url:
            workload = await load_workload(dataclasses.replace(options, url=url))
            for concurrency in plan.concurrencies:
                for repeat in range(plan.repeats):
                    seeded = dataclasses.replace(options, seed=options.seed + repeat)
                    number = repeat if plan.repeats > 1 else None
                    run = await measure(seeded, workload, concurrency, series, display, number)
                    runs.append(run)
                    keep(run)
                    if not run.completed:
                        return runs
    return runs


def offload_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The table of the claim: for each concurrency the medians over repeats, and their ratio (None if unknown)."""
    rows = []
    for concurrency in sorted({run.summary["concurrency"] for run in runs}):
        here = [run for run in runs if run.summary["concurrency"] == concurrency]
        off = [run for run in here if run.summary["series"] == "tier-off"]
        on = [run for run in here if run.summary["series"] == "tier-on"]
        throughput_off = _median(off, "output_token_throughput")
        throughput_on = _median(on, "output_token_throughput")
        rows.append(
            {
                "concurrency": concurrency,
                "cache_hit_rate_off": _median(off, "cache_hit_rate"),
                "cache_hit_rate_on": _median(on, "cache_hit_rate"),
                "theoretical_cache_hit_rate": _median(here, "theoretical_cache_hit_rate"),
                "output_token_throughput_off": throughput_off,
                "output_token_throughput_on": throughput_on,
                "ratio": throughput_on / throughput_off if throughput_on and throughput_off else None,
                "repeats": min(len(off), len(on)),
            }
        )
    return rows


def offload_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The same for a terminal."""
    table = Table(title="host KV tier off and on, medians", box=None)
    for title in ("concurrency", "hit rate off", "hit rate on", "theoretical", "tok/s off", "tok/s on", "ratio"):
        table.add_column(title, justify="right")
    formats = {
        "concurrency": "{:d}",
        "cache_hit_rate_off": "{:.1%}",
        "cache_hit_rate_on": "{:.1%}",
        "theoretical_cache_hit_rate": "{:.1%}",
        "output_token_throughput_off": "{:.1f}",
        "output_token_throughput_on": "{:.1f}",
        "ratio": "{:.2f}x",
    }
    for row in rows:
        table.add_row(*("-" if row[name] is None else text.format(row[name]) for name, text in formats.items()))
    return table


def _median(runs: Sequence[Run], name: str) -> float | None:
    values = [run.summary[name] for run in runs if run.summary[name] is not None]
    return statistics.median(values) if values else None
