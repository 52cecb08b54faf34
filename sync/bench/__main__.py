"""Runs the cases and prints them. Medians of N rounds in one run, both ways on the same deltas and machine."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from sync.bench.cases import CASES, Case
from sync.bench.replica import PeakMemory, Replica
from sync.bench.today import DiskCheckpoint
from sync.stores import open_store

MIB = 1 << 20
Figures = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sync.bench",
        description="Time from a sync request to weights live, and the pause: in place, and by today's way (apply the "
        "delta to a checkpoint on disk, then vLLM's reload_weights).",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this case")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measured versions a case (default: 5)")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    results: dict[str, Figures] = {}
    for case in CASES:
        if options.case is None or case.name in options.case:
            console.print(f"{case.name}: {case.what}")
            results[case.name] = _measure(case, options.rounds, console)
    if options.json:
        json.dump({"cases": results}, sys.stdout, indent=1)
        print()
    else:
        _print_table(results)
    return 0


def _measure(case: Case, rounds: int, console: Console) -> Figures:
    """The first version warms both ways up and is not counted."""
    with tempfile.TemporaryDirectory(prefix="sync-bench-") as name:
        directory = Path(name)
        with console.status("preparing deltas"):
            checkpoint = case.prepare(directory, rounds + 1)
        with console.status("in place"):
            figures = _measure_in_place(checkpoint, str(directory / "store"), rounds)
        with console.status("today's way"):
            figures |= _measure_today(checkpoint, directory, rounds)
    return figures | {
        "live_ratio": figures["reload_live_s"] / figures["live_s"],
        "pause_ratio": figures["reload_pause_ms"] / figures["pause_ms"],
    }


def _measure_in_place(checkpoint: Path, store: str, rounds: int) -> Figures:
    samples: list[dict[str, Any]] = []
    with Replica(checkpoint, "--policy-store", store, "--no-follow") as replica:
        for version in range(1, rounds + 2):
            with PeakMemory(replica) as memory:
                start = time.perf_counter()
                answer = replica.request("POST", "/policy/sync", {"version": version})
                live_s = time.perf_counter() - start
            report = answer["sync"]
            samples.append(report | report["timings_ms"] | {"live_s": live_s, "extra": memory.extra_bytes / MIB})
    measured = samples[1:]
    phases = ("stage_ms", "fetch_ms", "decode_ms", "map_ms", "drain_ms", "commit_ms", "publish_ms")
    return {
        "live_s": median(sample["live_s"] for sample in measured),
        "pause_ms": median(sample["pause_ms"] for sample in measured),
        "extra_host_mib": median(sample["extra"] for sample in measured),
        "density": median(sample["density"] for sample in measured),
        "payload_mb": median(sample["payload_bytes"] for sample in measured) / 1e6,
        **{phase: median(sample[phase] for sample in measured) for phase in phases},
    }


def _measure_today(checkpoint: Path, directory: Path, rounds: int) -> Figures:
    copy = directory / "copy"
    shutil.copytree(checkpoint, copy)
    disk, store = DiskCheckpoint(copy), open_store(str(directory / "store"))
    live_s: list[float] = []
    pause_ms: list[float] = []
    with Replica(copy) as replica:
        for version in range(1, rounds + 2):
            start = time.perf_counter()
            disk.apply(store, version)
            paused = time.perf_counter()
            replica.request("POST", "/pause?mode=keep&clear_cache=false")
            replica.request("POST", "/collective_rpc", {"method": "reload_weights"})
            replica.request("POST", "/resume")
            end = time.perf_counter()
            live_s.append(end - start)
            pause_ms.append((end - paused) * 1e3)
    return {"reload_live_s": median(live_s[1:]), "reload_pause_ms": median(pause_ms[1:])}


def _print_table(results: dict[str, Figures]) -> None:
    table = Table()
    for column in ("case", "density", "delta", "live", "today", "ratio", "pause", "today", "extra host memory"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for name, row in results.items():
        table.add_row(
            name,
            f"{row['density']:.3%}",
            f"{row['payload_mb']:.2f} MB",
            f"{row['live_s']:.3f} s",
            f"{row['reload_live_s']:.3f} s",
            f"{row['live_ratio']:.1f}x",
            f"{row['pause_ms']:.1f} ms",
            f"{row['reload_pause_ms']:.0f} ms",
            f"{row['extra_host_mib']:.1f} MiB",
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
