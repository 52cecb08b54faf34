"""The demo's terminal view: one row for each policy version that went live.

Owns layout only. It is fed with plain dictionaries (the trainer's ``published`` reports, the server's own
timings) and never asks anybody. Rows have fixed columns, so they read as a table while they arrive one by
one, and as plain lines when the output is a file or a pipe.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

_MISSING = "-"
_ROWS_PER_HEADER = 20


@dataclass(frozen=True)
class _Column:
    title: str
    width: int


_COLUMNS = (
    _Column("version", 8),
    _Column("density %", 10),
    _Column("delta MB", 9),
    _Column("fetch ms", 9),
    _Column("decode ms", 10),
    _Column("map ms", 8),
    _Column("stage ms", 9),
    _Column("pause ms", 9),
    _Column("live s", 7),
)
_PHASES = ("fetch", "decode", "map", "stage")


class DemoDisplay:
    """Prints the life of policy versions to ``console``. Publications may come from another thread.

    A version's density and delta size come from ``on_published`` and are shown in the row that
    ``on_live`` prints. When one commit carries several deltas, the row shows the sum of their sizes and,
    with ``<``, the sum of their densities, which bounds the density of the whole.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._lock = threading.Lock()
        self._waiting: dict[int, Mapping[str, Any]] = {}
        self._live_version = -1
        self._rows = 0

    def on_published(self, event: Mapping[str, Any]) -> None:
        """Notes a published version: ``version`` (int), ``density`` (fraction), ``payload_bytes``.

        An anchor has no density and no payload; it needs no call, and one does no harm. A version
        that is live already is not noted: its row is printed, and it must not count in a later one.
        """
        version = int(event["version"])
        with self._lock:
            if version > self._live_version:
                self._waiting[version] = event

    def on_live(self, event: Mapping[str, Any]) -> None:
        """Prints the row of a version that went live.

        ``version`` (int); ``phases_ms`` ({phase: milliseconds}, of which fetch, decode, map and stage
        are shown); ``pause_ms``; ``live_s`` (seconds from the sync request to weights live). What is
        absent is shown as ``-``.
        """
        version = int(event["version"])
        with self._lock:
            deltas = [self._waiting.pop(known) for known in sorted(self._waiting) if known <= version]
            self._live_version = version
        phases: Mapping[str, Any] = event.get("phases_ms") or {}
        cells = [
            str(version),
            _density(deltas),
            _delta_size(deltas),
            *(_number(phases.get(phase), 1) for phase in _PHASES),
            _number(event.get("pause_ms"), 1),
            _number(event.get("live_s"), 3),
        ]
        self._print_header_if_due()
        row = _row(cells)
        row.stylize("bold green", 0, _COLUMNS[0].width)
        self._print(row)

    def on_failed(self, event: Mapping[str, Any]) -> None:
        """Prints why a version did not go live: ``version`` (may be None), ``error`` (text)."""
        version = event.get("version")
        subject = "sync failed" if version is None else f"version {version} failed"
        self._print(Text.assemble((subject, "bold red"), f": {event['error']}"))

    def _print_header_if_due(self) -> None:
        if self._rows % _ROWS_PER_HEADER == 0:
            header = _row([column.title for column in _COLUMNS])
            header.stylize("bold")
            self._print(header)
        self._rows += 1

    def _print(self, text: Text) -> None:
        # soft_wrap: a row stays one line in a log file, however narrow rich thinks the output is.
        self._console.print(text, soft_wrap=True, highlight=False)


def _row(cells: list[str]) -> Text:
    return Text(" ".join(cell.rjust(column.width) for cell, column in zip(cells, _COLUMNS, strict=True)))


def _number(value: Any, decimals: int) -> str:
    return _MISSING if value is None else f"{float(value):.{decimals}f}"


def _density(deltas: list[Mapping[str, Any]]) -> str:
    known = [float(delta["density"]) for delta in deltas if delta.get("density") is not None]
    if not known:
        return _MISSING
    return f"{'<' if len(known) > 1 else ''}{100 * sum(known):.3f}"


def _delta_size(deltas: list[Mapping[str, Any]]) -> str:
    known = [int(delta["payload_bytes"]) for delta in deltas if delta.get("payload_bytes") is not None]
    return f"{sum(known) / 1e6:.2f}" if known else _MISSING
