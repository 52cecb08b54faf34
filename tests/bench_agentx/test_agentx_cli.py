"""The command line end to end, against a stub server in this process or as a child."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agentx_stub import Stub
from aiohttp import web

from bench_agentx import client_check
from bench_agentx.child_server import free_port
from bench_agentx.main import main
from bench_agentx.rows import read_rows

STUB_SERVER = Path(__file__).parent / "agentx_stub_server.py"


@contextmanager
def _serving(stub: Stub) -> Iterator[str]:
    """Serve a stub on a thread of its own: ``main`` runs its own loop on this one."""
    port, started, loop = free_port(), threading.Event(), asyncio.new_event_loop()

    async def start() -> None:
        runner = web.AppRunner(stub.app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        started.set()

    def run() -> None:
        loop.create_task(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _replay_arguments(data: Path, out: Path) -> list[str]:
    return [
        "--trace", str(data / "weka_relative.json"), str(data / "mooncake.jsonl"),
        "--delay-scale", "0.01", "--max-sessions", "8", "--vocab-size", "1000", "--out", str(out),
    ]  # fmt: skip


def test_a_run_leaves_rows_a_summary_and_a_report(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _serving(Stub(itl_s=0.001)) as url:
        arguments = ["run", "--url", url, "--concurrency", "3", "--json", *_replay_arguments(data, tmp_path)]
        assert main(arguments) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    rows, summary = read_rows(tmp_path / "run-c3.parquet")
    assert summary == printed == json.loads((tmp_path / "run-c3.json").read_text())
    assert summary["request_count"] == sum(row.phase == "profiling" for row in rows) > 8
    assert summary["error_request_count"] == 0
    assert 0 < summary["cache_hit_rate"] <= summary["theoretical_cache_hit_rate"] < 1
    assert summary["submission_valid"] is False
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "output_token_throughput" in page
    assert "src=" not in page


def test_a_sweep_and_a_comparison_of_its_runs(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _serving(Stub()) as url:
        arguments = ["sweep", "--url", url, "--concurrency", "1,4", *_replay_arguments(data, tmp_path)]
        assert main(arguments) == 0
    files = [str(tmp_path / f"run-c{concurrency}.parquet") for concurrency in (1, 4)]
    capsys.readouterr()
    assert main(["compare", *files, "--out", str(tmp_path / "compared")]) == 0
    printed = capsys.readouterr().out
    assert "run-c1 run-c4 last / first" in " ".join(printed.split())
    assert (tmp_path / "compared" / "report.html").is_file()


def test_updates_asked_for_during_a_run_are_in_its_summary(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = Stub(itl_s=0.02, version=1)
    with _serving(stub) as url:
        arguments = ["run", "--url", url, "--concurrency", "4", "--policy-sync-url", f"{url}/policy/sync"]
        arguments += ["--policy-sync-every-s", "0.1", "--json", *_replay_arguments(data, tmp_path)]
        assert main(arguments) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert stub.syncs[0] == {"version": "latest"}
    assert summary["policy"]["updates_asked"] == len(stub.syncs) > 0
    assert sum(summary["policy"]["tokens_by_version"].values()) == sum(
        row.completion_tokens or 0 for row in read_rows(tmp_path / "run-c4.parquet")[0] if row.phase == "profiling"
    )
    assert set(summary["policy"]["tokens_by_version"]) > {"1"}


def test_a_server_that_dies_leaves_a_report_and_status_one(data: Path, tmp_path: Path) -> None:
    async def die(number: int, request: web.Request) -> web.StreamResponse | None:
        if number >= 6:
            assert request.transport is not None
            request.transport.abort()
        return None

    with _serving(Stub(fail=die)) as url:
        arguments = ["sweep", "--url", url, "--concurrency", "8,16", *_replay_arguments(data, tmp_path)]
        assert main([*arguments, "--max-sessions", "100", "--start-ratio", "0", "0"]) == 1
    assert read_rows(tmp_path / "run-c8.parquet")[1]["ended_by"].startswith("server lost")
    assert "ended early" in (tmp_path / "report.html").read_text()


def test_ctrl_c_ends_a_run_with_its_report(data: Path, tmp_path: Path) -> None:
    stub = Stub(ttft_s=0.05)

    def interrupt() -> None:
        while len(stub.seen) < 5:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with _serving(stub) as url:
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        arguments = ["run", "--url", url, "--concurrency", "2", *_replay_arguments(data, tmp_path)]
        assert main([*arguments, "--max-sessions", "10000"]) == 1
        interrupting.join()
    rows, summary = read_rows(tmp_path / "run-c2.parquet")
    assert summary["ended_by"] == "interrupted"
    assert len(rows) >= 3
    assert all(row.ok for row in rows)


def test_bad_input_is_named_and_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    with _serving(Stub()) as url:
        assert main(["run", "--url", url, "--trace", str(bad), "--out", str(tmp_path)]) == 2
        assert "bad.jsonl: line 1: field 'input_length'" in capsys.readouterr().err
        assert main(["run", "--url", url, "--synthetic", "1", "--out", str(tmp_path)]) == 2
        assert "pass --vocab-size N or --tokenizer" in capsys.readouterr().err
        assert main(["run", "--url", url, "--model", "other", "--out", str(tmp_path)]) == 2
        assert "expected model 'other', found ['stub']" in capsys.readouterr().err
    assert main(["run", "--url", "http://127.0.0.1:9", "--out", str(tmp_path)]) == 2
    assert "expected an OpenAI server, found no answer" in capsys.readouterr().err
    assert main(["compare", str(bad), "--out", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == [bad]


def test_sessions_longer_than_the_context_are_left_out_or_scaled(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _serving(Stub(max_model_len=700)) as url:
        arguments = ["run", "--url", url, "--concurrency", "2", "--json", *_replay_arguments(data, tmp_path)]
        assert main(arguments) == 0
        assert json.loads(capsys.readouterr().out)[0]["sessions_dropped"] == 2
        assert main([*arguments, "--context-scale", "fit"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["sessions_dropped"] == 0


def test_synthesized_files_are_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synthesize", "--sessions", "2", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["describe", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["sessions"] == 2


def test_offload_starts_the_server_with_its_tier_off_then_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["offload", "--server", f"{sys.executable} {STUB_SERVER}", "--model", "some/model"]
    arguments += ["--kv-tier", "2GiB", "--concurrency", "1,3", "--json", *_replay_arguments(data, tmp_path)]
    arguments += ["--context-scale", "1", "--", "--extra", "value"]
    assert main(arguments) == 0
    low, high = json.loads(capsys.readouterr().out)
    assert (low["concurrency"], high["concurrency"]) == (1, 3)
    for level in (low, high):
        assert level["cache_hit_rate_off"] == 0.0
        assert 0 < level["cache_hit_rate_on"] <= level["theoretical_cache_hit_rate"]
        assert level["ratio"] == level["output_token_throughput_on"] / level["output_token_throughput_off"]
    off, on = (json.loads((tmp_path / f"tier-{tier}.log").read_text().splitlines()[0]) for tier in ("off", "on"))
    assert off[:5] == ["some/model", "--extra", "value", "--kv-tier", "off"]
    assert on[:5] == ["some/model", "--extra", "value", "--kv-tier", "2GiB"]
    for started in (off, on):
        with pytest.raises(OSError, match="refused"):  # the child is gone
            socket.create_connection(("127.0.0.1", int(started[-1])), timeout=5)
    seeds = {read_rows(path)[1]["options"]["seed"] for path in tmp_path.glob("*.parquet")}
    assert seeds == {0}


def test_offload_reports_a_server_that_does_not_start(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["offload", "--server", f"{sys.executable} {STUB_SERVER} --die", "--model", "m"]
    assert main([*arguments, *_replay_arguments(data, tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "ended with 7 before it was ready" in error
    assert "no memory for the model" in error
    assert main(["offload", "--server", "/nowhere/at/all", "--model", "m", "--out", str(tmp_path)]) == 2
    assert "cannot start '/nowhere/at/all'" in capsys.readouterr().err


def test_overhead_compares_what_was_served_with_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client_check, "ITL_S", 0.01)
    monkeypatch.setattr(client_check, "OUTPUT_TOKENS", 5)
    assert main(["overhead", "--streams", "6", "--duration-s", "2"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["served_inter_token_latency_ms"] == 10
    assert measured["time_to_first_token_ms"]["min"] >= measured["served_time_to_first_token_ms"] - 1
    assert measured["request_count"] > 0
    assert measured["errors"] == {}
    assert measured["client"]["cpu_share"] > 0
