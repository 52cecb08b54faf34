"""The report's plots, as SVG text to put into a page (matplotlib, without a display)."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench_agentx.run import Run

_STYLE: Any = {"svg.fonttype": "none", "font.size": 10.0, "axes.grid": True, "grid.alpha": 0.3}


def throughput_against_interactivity(runs: Sequence[Run]) -> str:
    """One point a run, one line a series: up and to the right is better."""

    def draw(axes: Axes) -> None:
        for series, members in by_series(runs).items():
            points = [
                (
                    run.summary["e2e_normalized_interactivity_tok_s_user"]["p90"],
                    run.summary["output_token_throughput_per_gpu"],
                    run.summary["concurrency"],
                )
                for run in members
                if run.summary["e2e_normalized_interactivity_tok_s_user"]
            ]
            axes.plot([x for x, _, _ in points], [y for _, y, _ in points], marker="o", label=series)
            for x, y, concurrency in points:
                axes.annotate(f"{concurrency}", (x, y), textcoords="offset points", xytext=(5, 5))
        axes.set_xlabel("P90 E2E-normalised interactivity (tok/s/user)")
        axes.set_ylabel("output throughput (tok/s/GPU)")

    return _svg(draw)


def hit_rate_against_concurrency(runs: Sequence[Run]) -> str:
    """The server's hit rate of each series, and the theoretical one, which no server can beat."""

    def draw(axes: Axes) -> None:
        for series, members in by_series(runs).items():
            measured = [(run.summary["concurrency"], run.summary["cache_hit_rate"]) for run in members]
            known = [(x, 100 * rate) for x, rate in measured if rate is not None]
            axes.plot([x for x, _ in known], [y for _, y in known], marker="o", label=series)
        theory = sorted(
            (run.summary["concurrency"], 100 * (run.summary["theoretical_cache_hit_rate"] or 0.0)) for run in runs
        )
        axes.plot([x for x, _ in theory], [y for _, y in theory], "k:", label="theoretical")
        axes.set_ylim(0, 105)
        axes.set_xlabel("concurrency (live session trees)")
        axes.set_ylabel("prefix-cache hit rate (%)")

    return _svg(draw)


def time_to_first_token(runs: Sequence[Run]) -> str:
    """The cumulative distribution of each run."""

    def draw(axes: Axes) -> None:
        for run in runs:
            ttft_ms = sorted(
                row.time_to_first_token_ms
                for row in run.rows
                if row.phase == "profiling" and row.time_to_first_token_ms is not None
            )
            if ttft_ms:
                share = np.arange(1, len(ttft_ms) + 1) / len(ttft_ms) * 100
                axes.step(ttft_ms, share, where="post", label=run.summary["label"])
        axes.set_xscale("log")
        axes.set_xlabel("time to first token (ms)")
        axes.set_ylabel("requests (%)")

    return _svg(draw)


def side_by_side(runs: Sequence[Run]) -> str:
    """Output throughput of each series at each concurrency, as bars beside each other."""

    def draw(axes: Axes) -> None:
        series = by_series(runs)
        levels = sorted({run.summary["concurrency"] for run in runs})
        width = 0.8 / len(series)
        for number, (name, members) in enumerate(series.items()):
            heights = {run.summary["concurrency"]: run.summary["output_token_throughput"] for run in members}
            places = [levels.index(level) + (number - (len(series) - 1) / 2) * width for level in heights]
            bars = axes.bar(places, list(heights.values()), width, label=name)
            axes.bar_label(bars, fmt="%.0f")
        axes.set_xticks(range(len(levels)), [str(level) for level in levels])
        axes.set_xlabel("concurrency (live session trees)")
        axes.set_ylabel("output throughput (tok/s)")

    return _svg(draw)


def by_series(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by series, by concurrency within one."""
    series: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.summary["concurrency"]):
        series.setdefault(run.summary["series"], []).append(run)
    return series


def _svg(draw: Callable[[Axes], None]) -> str:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
