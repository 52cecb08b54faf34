"""`rollout-serve` as its users start it: a child process, its HTTP port, its log, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 240.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A running `rollout-serve` child."""

    def __init__(self, command: list[str], port: int, log: Path, environment: dict[str, str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self._sink = log.open("wb")
        self.child = subprocess.Popen(
            command,
            stdout=self._sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            # Not a session of its own: Linux schedules sessions as groups (autogroup), and a trainer in this one was
            # seen to get no processor time for minutes beside a busy server in another.
            process_group=0,
            cwd=ROOT,
        )

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as response:
            return json.load(response)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            f"{self.url}{path}",
            json.dumps(body).encode(),
            {"content-type": "application/json", **(headers or {})},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            assert self.child.poll() is None, f"the server ended with {self.child.returncode}:\n{self.tail()}"
            try:
                if condition():
                    return
            except (OSError, ValueError):
                pass  # not listening yet, or 503
            assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}\n{self.tail()}"
            time.sleep(0.1)

    def wait_ready(self) -> None:
        self.wait_until(lambda: self.get("/ready")["ready"], "ready")

    def wait_version(self, version: int) -> None:
        self.wait_until(lambda: self.get("/policy")["version"] >= version, f"version {version}")

    def tail(self) -> str:
        """The end of the log, without the requests that went well."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if not line.endswith(" 200 OK")][-60:])

    def processes(self) -> list[psutil.Process]:
        """The server and everything it started."""
        try:
            parent = psutil.Process(self.child.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def interrupt(self, timeout_s: float = 60.0) -> int:
        """Ctrl-C; returns the exit status."""
        self.child.send_signal(signal.SIGINT)
        return self.child.wait(timeout_s)

    def close(self) -> None:
        """Lets the server end by itself, or its shared memory would stay; kills what is left."""
        started = self.processes()
        if self.child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.interrupt()
        for process in reversed(started):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.child.wait()
        self._sink.close()


@contextmanager
def running_server(directory: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "runtime.main", *arguments, "--port", str(port)]
    server = Server(command, port, directory / f"server-{port}.log", {**SMALL, **(environment or {})})
    try:
        yield server
    finally:
        server.close()


# One compute thread: with one a core, every step would wait for whatever else runs on the slower core.
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0", "PYTHONUNBUFFERED": "1"}
SMALL_ARGUMENTS = (
    "--enforce-eager",
    "--max-model-len",
    "512",
    "--host",
    "127.0.0.1",
    "--follow-interval",
    "0.1",
    "--kv-tier",
    "off",
)


class Trainer:
    """The running demo trainer."""

    def __init__(self, child: subprocess.Popen[bytes], log: Path) -> None:
        self.child = child
        self.log = log

    def is_well(self) -> bool:
        """Still at work, or done without an error."""
        return self.child.poll() in {None, 0}

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@contextmanager
def demo_trainer(store: str, model: Path, versions: int, log: Path) -> Iterator[Trainer]:
    """The real demo trainer as a child, at the priority of whatever else runs: an idle one would starve here."""
    command = [
        *(sys.executable, "-m", "runtime.demo.trainer", "--store", store, "--model", str(model)),
        *("--versions", str(versions), "--interval-s", "1", "--niceness", "0"),
    ]
    with log.open("wb") as sink:
        child = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, cwd=ROOT)
        try:
            yield Trainer(child, log)
        finally:
            child.kill()
            child.wait()
