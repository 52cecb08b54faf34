"""The report's plots, as SVG text to put into a page (matplotlib, without a display)."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench_agentx.run import Run

_STYLE: Any = {"svg.fonttype": "none", "font.size": 10.0, "axes.grid": True, "grid.alpha": 0.3}


def throughput_against_interactivity(runs: Sequence[Run]) -> str:
    """One point a concurrency, one line a series: up and to the right is better."""

    def draw(axes: Axes) -> None:
        for series, members in _by_series(runs).items():
            interactivity = _medians(members, _p90_interactivity)
            throughput = _medians(members, lambda summary: summary["output_token_throughput_per_gpu"])
            levels = sorted(interactivity.keys() & throughput.keys())
            axes.plot(
                [interactivity[level] for level in levels],
                [throughput[level] for level in levels],
                marker="o",
                label=series,
            )
            for level in levels:
                place = (interactivity[level], throughput[level])
                axes.annotate(str(level), place, textcoords="offset points", xytext=(5, 5))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("P90 E2E-normalised interactivity (tok/s/user)")
        axes.set_ylabel("output throughput (tok/s/GPU)")

    return _svg(draw)


def hit_rate_against_concurrency(runs: Sequence[Run]) -> str:
    """The server's hit rate of each series, and the theoretical one, which no server can beat."""

    def draw(axes: Axes) -> None:
        for series, members in _by_series(runs).items():
            rates = _medians(members, lambda summary: summary["cache_hit_rate"])
            axes.plot(list(rates), [100 * rate for rate in rates.values()], marker="o", label=series)
        theory = _medians(runs, lambda summary: summary["theoretical_cache_hit_rate"])
        axes.plot(list(theory), [100 * rate for rate in theory.values()], "k:", label="theoretical")
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
        series = _by_series(runs)
        levels = sorted({run.summary["concurrency"] for run in runs})
        width = 0.8 / len(series)
        for number, (name, members) in enumerate(series.items()):
            heights = _medians(members, lambda summary: summary["output_token_throughput"])
            places = [levels.index(level) + (number - (len(series) - 1) / 2) * width for level in heights]
            bars = axes.bar(places, list(heights.values()), width, label=name)
            axes.bar_label(bars, fmt="%.0f")
        axes.set_xticks(range(len(levels)), [str(level) for level in levels])
        axes.set_xlabel("concurrency (live session trees)")
        axes.set_ylabel("output throughput (tok/s)")

    return _svg(draw)


def _by_series(runs: Sequence[Run]) -> dict[str, list[Run]]:
    series: dict[str, list[Run]] = {}
    for run in runs:
        series.setdefault(run.summary["series"], []).append(run)
    return series


def _medians(runs: Sequence[Run], find: Callable[[dict[str, Any]], float | None]) -> dict[int, float]:
    """Concurrency, rising -> the median over its runs; those without the number are left out."""
    found: dict[int, list[float]] = {}
    for run in sorted(runs, key=lambda run: int(run.summary["concurrency"])):
        value = find(run.summary)
        if value is not None:
            found.setdefault(run.summary["concurrency"], []).append(value)
    return {level: statistics.median(values) for level, values in found.items()}


def _p90_interactivity(summary: dict[str, Any]) -> float | None:
    values: dict[str, float] | None = summary["e2e_normalized_interactivity_tok_s_user"]
    return None if values is None else values["p90"]


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
