"""The demo's terminal view, as a terminal and as a pipe would show it."""

from __future__ import annotations

import io

from rich.console import Console

from runtime.demo.display import DemoDisplay

PUBLISHED = {"version": 7, "base_version": 6, "density": 0.00451, "payload_bytes": 2_100_000}
LIVE = {
    "version": 7,
    "phases_ms": {"fetch": 3.21, "decode": 12.5, "map": 4.0, "stage": 9.87, "verify": 1.0},
    "pause_ms": 8.44,
    "live_s": 0.0912,
}


def plain(width: int = 80) -> tuple[DemoDisplay, io.StringIO]:
    output = io.StringIO()
    return DemoDisplay(Console(file=output, width=width)), output


def test_a_live_version_is_one_row_under_a_header() -> None:
    display, output = plain()
    display.on_published(PUBLISHED)
    assert output.getvalue() == ""
    display.on_live(LIVE)
    header, row = output.getvalue().splitlines()
    assert row.split() == ["7", "0.451", "2.10", "3.2", "12.5", "4.0", "9.9", "8.4", "0.091"]
    assert "density %" in header
    assert "pause ms" in header
    # Right-aligned columns: the row's last figure ends where its title ends.
    assert len(header) == len(row)


def test_the_header_comes_once_for_many_rows_and_again_after_twenty() -> None:
    display, output = plain()
    for version in range(1, 22):
        display.on_live({"version": version})
    lines = output.getvalue().splitlines()
    assert [i for i, line in enumerate(lines) if "version" in line] == [0, 21]
    assert len(lines) == 23


def test_unknown_figures_are_dashes() -> None:
    display, output = plain()
    display.on_published({"version": 0})
    display.on_live({"version": 0, "phases_ms": None})
    assert output.getvalue().splitlines()[1].split() == ["0", *["-"] * 8]


def test_a_commit_of_several_deltas_shows_their_sum() -> None:
    display, output = plain()
    for version in (1, 2, 3):
        display.on_published({"version": version, "density": 0.004, "payload_bytes": 1_000_000})
    display.on_live({"version": 2})
    display.on_live({"version": 3})
    rows = [line.split()[:3] for line in output.getvalue().splitlines()[1:]]
    assert rows == [["2", "<0.800", "2.00"], ["3", "0.400", "1.00"]]


def test_a_report_that_comes_after_its_version_went_live_counts_in_no_later_row() -> None:
    display, output = plain()
    display.on_live({"version": 1})
    for version in (1, 2):
        display.on_published({"version": version, "density": 0.004, "payload_bytes": 1_000_000})
    display.on_live({"version": 2})
    rows = [line.split()[:3] for line in output.getvalue().splitlines()[1:]]
    assert rows == [["1", "-", "-"], ["2", "0.400", "1.00"]]


def test_a_failure_says_which_version_and_why_on_one_line() -> None:
    display, output = plain(width=30)
    display.on_failed({"version": 4, "error": "version 4, tensor [bold]x[/bold]: checksum mismatch, " + "x" * 60})
    display.on_failed({"version": None, "error": "store unreachable"})
    first, second = output.getvalue().splitlines()
    assert first.startswith("version 4 failed: version 4, tensor [bold]x[/bold]: checksum mismatch")
    assert second == "sync failed: store unreachable"


def test_a_terminal_gets_colour_and_a_pipe_does_not() -> None:
    terminal = io.StringIO()
    display = DemoDisplay(Console(file=terminal, force_terminal=True, color_system="standard", width=80))
    display.on_live(LIVE)
    assert "\x1b[" in terminal.getvalue()
    display, output = plain()
    display.on_live(LIVE)
    display.on_failed({"version": 8, "error": "no"})
    assert "\x1b[" not in output.getvalue()
