"""The command: `python -m native.bench`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from native import _core
from native.bench.baselines import Libzstd
from native.bench.decoding import Case, measure_fixture, recipes
from native.bench.gates import Gate, gates
from native.bench.glm import PUBLISHED_SECONDS, RUNS, ScaleRun, run_scale
from native.bench.kernels import (
    measure_checksums,
    measure_encoding,
    measure_memory_access,
    measure_peak_memory,
)
from native.bench.real import real_fixtures

EPILOG = """\
Rates are GB/s of logical content, medians of alternating rounds in thread CPU time, one core:
  (a) libzstd, one shot into a buffer       (b) libzstd through 16 MiB, then a vector scan
  (c) Python zstandard + numpy.nonzero
The scale run takes all cores and is wall clock. No gate fails the command; run it on a quiet machine."""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m native.bench",
        description="Measures the native core against libzstd and against Python.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--only", metavar="TEXT", default="", help="only fixtures whose name contains TEXT")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measured rounds (default: 5)")
    parser.add_argument("--size-mib", type=int, default=128, metavar="N", help="content a fixture (default: 128)")
    parser.add_argument("--scale", choices=["glm-5.3"], help="also decode 716.56 GiB of logical XOR on all cores")
    parser.add_argument("--real", action="store_true", help="also real deltas of SmolLM2 (needs torch, transformers)")
    parser.add_argument("--kernels", action="store_true", help="also checksums, encoding, mapping, memory access")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    cases: list[Case] = []
    chosen = [recipe for recipe in recipes(options.size_mib << 20) if options.only in recipe.name]
    for recipe in progress.track(chosen, description="decoding"):
        with_python = recipe.density == 0.0009 and recipe.level == 3
        cases.append(measure_fixture(recipe.make(), options.rounds, with_python=with_python))
    for fixture in real_fixtures() if options.real else ():
        cases.append(measure_fixture(fixture, options.rounds, with_python=False))
    scale: dict[str, ScaleRun] = {}
    if options.scale:
        scale = {name: run_scale(name, progress) for name in RUNS}
    kernels: dict[str, Any] = {}
    if options.kernels:
        kernels = {
            "checksums": measure_checksums(options.rounds),
            "encoding": measure_encoding(options.rounds),
            "memory_access": measure_memory_access(options.rounds),
            "peak_bytes_beyond_input_and_output": measure_peak_memory(),
        }
    return {
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "instruction_set": _core.instruction_sets()[-1],
            "libzstd": Libzstd().version,
        },
        "cases": cases,
        "glm_5_3": scale,
        "kernels": kernels,
        "gates": gates({case.name: case for case in cases}, scale),
    }


def print_tables(result: dict[str, Any], console: Console) -> None:
    table = Table("fixture", "size %", "bytes/change", "native", "(a)", "(b)", "(c)", "over (a)", "over (b)")
    for case in result["cases"]:
        numbers = [f"{value:.3g}" if value is not None else "" for value in case[1:]]
        table.add_row(case.name, *numbers)
    console.print(table)
    for name, run in result["glm_5_3"].items():
        console.print(
            f"GLM-5.3 scale, {name}: {run.seconds:.2f} s beside {PUBLISHED_SECONDS:.2f} s published "
            f"({run.cpu_seconds:.2f} s of CPU time; {run.logical_gib:.2f} GiB logical, "
            f"{run.compressed_gib:.2f} GiB compressed)"
        )
    for group, figures in result["kernels"].items():
        console.print(group, {name: round(value, 3) for name, value in figures.items()})
    table = Table("gate", "target", "measured", "")
    gate: Gate
    for gate in result["gates"]:
        if gate.measured is not None:
            table.add_row(gate.name, f"{gate.target:g}", f"{gate.measured:.3g}", "" if gate.passed else "missed")
    console.print(table)


def to_json(result: dict[str, Any]) -> str:
    plain = {
        **result,
        "cases": [case._asdict() for case in result["cases"]],
        "glm_5_3": {name: run._asdict() for name, run in result["glm_5_3"].items()},
        "gates": [gate._asdict() for gate in result["gates"]],
    }
    return json.dumps(plain, indent=1)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        result = measure(options, progress)
    if options.json:
        print(to_json(result))
    else:
        print_tables(result, Console(width=140))
    return 0


if __name__ == "__main__":
    sys.exit(main())
