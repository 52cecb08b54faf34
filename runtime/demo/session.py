"""`rollout-serve --demo`: a real model, a real trainer beside it, and versions going live in this terminal.

Owns the trainer child and the temporary store. The server itself is the ordinary one, pointed at that store: it
brings the anchor from there, proves it, deletes its copy and follows.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from runtime.cache import cache_directory
from runtime.demo.convert import CHECKPOINT_NAME, DemoModelError, ensure_demo_model
from runtime.demo.display import DemoDisplay
from runtime.server import serve
from sync.coordinator import SyncReport, SyncState

logger = logging.getLogger("rollout.demo")
SECONDS_PER_VERSION = 8.0
TRAINER_STOP_TIMEOUT_S = 30.0
KV_CACHE_BYTES = 1 << 30
CONTEXT_TOKENS = 2048


class DemoFailed(RuntimeError):
    """The demo could not start; the message says why."""


class _DisplayObserver:
    """Feeds the display from the coordinator (`sync.coordinator.Observer`)."""

    def __init__(self, display: DemoDisplay) -> None:
        self._display = display

    def on_state(self, state: SyncState, version: int, previous_state_ms: float) -> None:
        pass

    def on_report(self, report: SyncReport) -> None:
        timings = report.timings_ms
        phases = {name.removesuffix("_ms"): value for name, value in timings.items()}
        self._display.on_live(
            {
                "version": report.version,
                "phases_ms": phases,
                "pause_ms": timings["pause_ms"],
                "live_s": timings["live_ms"] / 1e3,
            }
        )

    def on_failure(self, version: int, error: Exception) -> None:
        self._display.on_failed({"version": version, "error": str(error)})


def run_demo(options: argparse.Namespace) -> int:
    """Runs the demo until interrupted; returns the exit status. Leaves no process and no file behind."""
    console = Console()
    display = DemoDisplay(console)
    try:
        model = ensure_demo_model(lambda line: console.print(line, style="dim"))
        with (
            tempfile.TemporaryDirectory(prefix="demo-", dir=cache_directory()) as directory,
            _trainer(Path(directory), model, display, console),
        ):
            _apply_defaults(options, directory)
            console.print(
                f"starting vLLM on http://{options.host}:{options.port} (half a minute), try\n"
                f"  curl http://{options.host}:{options.port}/v1/chat/completions -H 'content-type: application/json' "
                f'-d \'{{"model": "{CHECKPOINT_NAME}", "messages": [{{"role": "user", "content": "Hello"}}]}}\'\n'
                "Ctrl-C ends everything.",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            return serve(options, [_DisplayObserver(display)])
    except (DemoModelError, DemoFailed) as error:
        console.print(f"rollout-serve --demo: {error}", style="bold red")
        return 1


def _apply_defaults(options: argparse.Namespace, store: str) -> None:
    """Sizes for a laptop; flags that the user gave stay. A core stays free for the trainer."""
    if (os.cpu_count() or 1) > 1:
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
    options.policy_store = store
    options.host = options.host or "127.0.0.1"
    options.served_model_name = options.served_model_name or [CHECKPOINT_NAME]
    options.max_model_len = options.max_model_len or CONTEXT_TOKENS
    options.kv_cache_memory_bytes = options.kv_cache_memory_bytes or KV_CACHE_BYTES
    options.enforce_eager = True
    options.disable_uvicorn_access_log = True
    options.uvicorn_log_level = "warning"
    # The table says the same.
    logging.getLogger("rollout.sync").setLevel(logging.WARNING)


@contextmanager
def _trainer(store: Path, model: Path, display: DemoDisplay, console: Console) -> Iterator[None]:
    """The trainer child, from its anchor on; it ends with the block, or with this process."""
    command = [
        *(sys.executable, "-m", "runtime.demo.trainer", "--store", str(store), "--model", str(model)),
        *("--interval-s", str(SECONDS_PER_VERSION), "--stop-with-parent", "--json"),
    ]
    # Its own process group: Ctrl-C reaches the server first, which ends the trainer in order. Not its own session:
    # Linux schedules sessions as groups of equal weight (autogroup), among which niceness counts for nothing.
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    has_anchor = threading.Event()
    reader = threading.Thread(target=_relay, args=(child, display, console, has_anchor), daemon=True)
    reader.start()
    try:
        console.print("starting the trainer: it publishes the anchor, then a version every few steps")
        while not has_anchor.wait(0.2):
            if child.poll() is not None:
                raise DemoFailed(f"the trainer ended with status {child.returncode} before it published the anchor")
        yield
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
        try:
            child.wait(TRAINER_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        reader.join()


def _relay(child: subprocess.Popen[str], display: DemoDisplay, console: Console, has_anchor: threading.Event) -> None:
    """Passes the trainer's reports on to the display."""
    assert child.stdout is not None
    for line in child.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "published":
            display.on_published(event)
            has_anchor.set()
        elif event["event"] == "failed":
            console.print(f"trainer: {event['error']}", style="bold red")


def quiet_engine_logs() -> None:
    """The demo's table is the output: other lines are for errors, unless the user asked for more."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
