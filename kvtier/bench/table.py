"""The report as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def table(report: dict[str, Any]) -> str:
    return "\n".join(_lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    machine = report["machine"]
    yield f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_at_start']:.1f}"
    if "ttft" in report:
        yield "prompt    cold ms     gpu ms    host ms  host/cold"
        for row in report["ttft"]:
            yield (
                f"{row['prompt_tokens']:6d} {row['cold_ms']:10.0f} {row['gpu_ms']:10.0f} {row['host_ms']:10.0f} "
                f"{row['host_over_cold']:10.3f}"
            )
    for pool, arms in report.get("sessions", {}).items():
        yield f"sessions, pool of {arms['pool_blocks']} blocks ({pool})"
        for off, on in zip(arms["off"], arms["on"], strict=True):
            gain = on["output_tokens_per_s"] / off["output_tokens_per_s"]
            yield (
                f"  {off['concurrency']:3d} at a time: off {off['output_tokens_per_s']:.2f} tok/s, hit rate "
                f"{off['hit_rate']:.1%}; on {on['output_tokens_per_s']:.2f} tok/s, {on['hit_rate']:.1%}; x{gain:.2f}"
            )
    if "stores" in report:
        yield from _store_lines(report["stores"])
    for row in report.get("pause", ()):
        yield (
            f"{row['cached_blocks']:7d} cached blocks, {row['tier_entries']} tier entries: pause "
            f"{row['pause_ms']:.1f} ms (first {row['first_pause_ms']:.1f}, longest {row['max_pause_ms']:.1f}; drain "
            f"{row['drain_ms']:.1f}, commit {row['commit_ms']:.1f}, publish {row['publish_ms']:.1f})"
        )
    for row in report.get("move", ()):
        yield f"{row['cached_blocks']:7d} cached blocks: move to a new namespace {row['move_ms']:.3f} ms"


def _store_lines(stores: dict[str, Any]) -> Iterator[str]:
    yield "stores: sessions"
    for row in stores["sessions"]:
        yield (
            f"  {row['mode']:28s} pool {row['pool']:9s} {row['output_tokens_per_s']:7.2f} tok/s, hit rate "
            f"{row['hit_rate']:.1%}, {row['stored_chunks']} of {row['full_chunks']} chunks in the tier, "
            f"{row['lost_stores']} stores lost"
        )
    yield "stores: decoding, everything fits"
    for row in stores["decode"]:
        yield (
            f"  {row['mode']:28s} {row['output_tokens_per_s']:7.2f} tok/s ({-row['loss']:+.1%}), "
            f"{row.get('stored_chunks', 0)} chunks stored"
        )
