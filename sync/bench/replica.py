"""A served replica under measurement: `rollout-serve` as a child process, spoken to over HTTP only."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0
SAMPLE_INTERVAL_S = 0.005


class ReplicaFailed(RuntimeError):
    """The server did not start, or refused a request; the message has its last words."""


class Replica:
    """A server child on a free local port. Use as a context manager."""

    def __init__(self, model: Path, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        command = [
            *(sys.executable, "-m", "runtime.main", str(model), "--host", "127.0.0.1", "--port", str(self._port)),
            *("--enforce-eager", "--max-model-len", "512", "--kv-tier", "off", *arguments),
        ]
        # Its routes are what today's way needs: pause, reload_weights, resume.
        environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        self._child = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )

    def __enter__(self) -> Replica:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._child.poll() is not None:
                break
            try:
                self.request("GET", "/ready")
                return self
            except (OSError, ReplicaFailed):
                time.sleep(0.2)
        self.__exit__(None, None, None)
        raise ReplicaFailed(f"the server did not get ready:\n{self._last_words()}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.terminate()
        try:
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One HTTP exchange. Raises ReplicaFailed for an answer that is not 2xx."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise ReplicaFailed(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error
        answer: dict[str, Any] = json.loads(text) if text else {}
        return answer

    def rss_bytes(self) -> int:
        """Resident memory of the server and its children; pages that they share count for each of them."""
        total = 0
        for process in [psutil.Process(self._child.pid), *psutil.Process(self._child.pid).children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]


class PeakMemory:
    """Samples a replica's resident memory on a thread; `extra_bytes` is the peak above the start."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._before = replica.rss_bytes()
        self._peak = self._before

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def extra_bytes(self) -> int:
        return self._peak - self._before

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_INTERVAL_S):
            self._peak = max(self._peak, self._replica.rss_bytes())
