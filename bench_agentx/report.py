"""The HTML report: one file that needs nothing else, plots inside it as SVG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jinja2

from bench_agentx import plots, tables
from bench_agentx.run import Run


def write_report(path: Path, title: str, runs: Sequence[Run]) -> None:
    """Write the report of some runs, the first being the one that others are compared with."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bench_agentx", "templates"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    figures = [
        ("Throughput against interactivity", plots.throughput_against_interactivity(runs)),
        ("Hit rate against concurrency", plots.hit_rate_against_concurrency(runs)),
        ("Time to first token", plots.time_to_first_token(runs)),
        ("Output throughput side by side", plots.side_by_side(runs)),
    ]
    page = environment.get_template("report.html.j2").render(
        title=title,
        heading=tables.heading(runs),
        lines=tables.cells(runs),
        remarks=[(run.summary["label"], tables.remarks(run)) for run in runs],
        policies=[
            (run.summary["label"], json.dumps(run.summary["policy"], indent=2))
            for run in runs
            if run.summary["policy"] is not None
        ],
        options=[(run.summary["label"], json.dumps(run.summary["options"], indent=2)) for run in runs],
        figures=figures,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
