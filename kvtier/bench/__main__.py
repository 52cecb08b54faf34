"""Runs the parts and prints them: `python -m kvtier.bench [--json] [--quick] [--only PART]`.

A random model that costs something to prefill, a small GPU-side pool, a real LMCache server; each engine runs in a
process of its own. Progress goes to stderr, the report to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvtier.bench.pause import run_move, run_pause
from kvtier.bench.sessions import run_sessions
from kvtier.bench.sizes import MODEL, QUICK, Sizes
from kvtier.bench.stores import run_stores
from kvtier.bench.table import table
from kvtier.bench.ttft import run_ttft

PARTS: dict[str, Callable[[str, Sizes], Any]] = {
    "ttft": run_ttft,
    "sessions": run_sessions,
    "stores": run_stores,
    "pause": lambda _, sizes: run_pause(sizes),
    "move": run_move,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvtier.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the report as JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="some minutes: fewer lengths, one concurrency")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="one part (may be given again)")
    options = parser.parse_args(arguments)
    report = run(QUICK if options.quick else Sizes(), options.only or list(PARTS))
    print(json.dumps(report, indent=2) if options.json else table(report))
    return 0


def run(sizes: Sizes, parts: Sequence[str]) -> dict[str, Any]:
    """Runs the parts in order; returns the report."""
    from sync.synthetic import write_random_checkpoint

    report: dict[str, Any] = {"machine": _machine(), "model": MODEL, "sizes": asdict(sizes)}
    with tempfile.TemporaryDirectory(prefix="kv-bench-") as directory:
        checkpoint = Path(directory) / "model"
        write_random_checkpoint(
            checkpoint, architecture="qwen3", tied=True, tokenizer=False, max_position=32768, **MODEL
        )
        for part in parts:
            report[part] = PARTS[part](str(checkpoint), sizes)
    return report


def _machine() -> dict[str, Any]:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
