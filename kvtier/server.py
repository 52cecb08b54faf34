"""The LMCache server as a supervised child: one a node, with explicit flags, restarted when it dies.

Owns the child process, its ports and its control socket. Refuses to own what the engine does about a death:
it reports `on_lost` once the child is certainly dead (it writes into the engine's KV memory, so a doubtful one is
killed first), and `on_back` once a new one answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, unique
from pathlib import Path
from typing import Any

logger = logging.getLogger("rollout.kv")

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
PROBE_INTERVAL_S = 0.5
# Below the connector's heartbeat (see `kvtier.wiring`): a server that hangs is dead before the engine gives it up
# and reuses memory that it might still write.
HANG_TIMEOUT_S = 6.0
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
_STEADY_S = 60.0
_MAX_ANSWER_BYTES = 64 << 20


@unique
class ServerState(Enum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class ServerFailed(RuntimeError):
    """The server did not come up; the message carries the end of its log."""


class ServerUnreachable(RuntimeError):
    """The server does not answer now."""


@dataclass(frozen=True)
class ServerAddress:
    """Where the child listens; all on 127.0.0.1. The ports stay the same over restarts."""

    rpc_port: int
    http_port: int
    metrics_port: int

    @property
    def rpc_url(self) -> str:
        return f"tcp://127.0.0.1:{self.rpc_port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"


Hook = Callable[[], Awaitable[None]]


async def _nothing() -> None:
    """The default hook."""


class LmcacheServer:
    """Starts, watches and stops the child. `capacity_bytes`: of its pool. `chunk_tokens`: a multiple of the engine's
    block size. `directory`: private to this server, for its log and its control socket."""

    def __init__(self, capacity_bytes: int, chunk_tokens: int, directory: Path) -> None:
        self.capacity_bytes = capacity_bytes
        self.chunk_tokens = chunk_tokens
        self.address = ServerAddress(*_free_ports(3))
        self.state = ServerState.STOPPED
        self.restarts = 0
        self.on_lost: Hook = _nothing
        self.on_back: Hook = _nothing
        self._log_path = directory / "lmcache.log"
        self._socket = directory / "lmcache.sock"
        self._child: subprocess.Popen[bytes] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._child is None or self._child.poll() is not None else self._child.pid

    async def start(self) -> None:
        """Starts the child and waits until it answers. Raises ServerFailed."""
        self.state = ServerState.STARTING
        await self._launch()
        self.state = ServerState.RUNNING

    def watch(self) -> None:
        """From now on a child that dies or hangs is replaced. Needs the event loop that serves."""
        self._watcher = asyncio.create_task(self._watch(), name="kv-tier-watch")

    async def resize(self, capacity_bytes: int) -> None:
        """Replaces the child by one of another capacity; the cache starts cold. Raises ServerFailed."""
        async with self._changing:
            self.capacity_bytes = capacity_bytes
            await self._replace()

    async def stop(self) -> None:
        """Ends the child and waits for it."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        await self._end_child()
        self.state = ServerState.STOPPED

    async def call(self, call: str, timeout_s: float = HANG_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
        """Calls `kvtier.lmcache_module` in the server. Raises ServerUnreachable, RuntimeError."""
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=_MAX_ANSWER_BYTES)
                try:
                    writer.write(json.dumps({"call": call, **arguments}).encode() + b"\n")
                    line = await reader.readline()
                finally:
                    writer.close()
            answer: dict[str, Any] = json.loads(line)
        except (OSError, TimeoutError, ValueError) as error:
            raise ServerUnreachable(f"lmcache server does not answer {call}: {error!r}") from error
        if "error" in answer:
            raise RuntimeError(f"lmcache server: {call} failed: {answer['error']}")
        return answer

    def command(self) -> list[str]:
        """Every flag that matters is explicit: defaults of the server are made for other machines."""
        size_gib = self.capacity_bytes / (1 << 30)
        address = self.address
        module = {"module_path": "kvtier.lmcache_module", "config": {"socket": str(self._socket)}}
        return [
            *(sys.executable, "-m", "kvtier.server_child", str(os.getpid()), "server"),
            *("--host", "127.0.0.1", "--port", str(address.rpc_port)),
            *("--http-host", "127.0.0.1", "--http-port", str(address.http_port)),
            *("--prometheus-port", str(address.metrics_port)),
            *("--l1-size-gb", f"{size_gib:.6f}", "--no-l1-use-lazy"),
            *("--chunk-size", str(self.chunk_tokens)),
            *("--eviction-policy", "LRU", "--eviction-trigger-watermark", "0.9", "--eviction-ratio", "0.2"),
            *("--supported-transfer-mode", "lmcache_driven"),
            # A lookup whose request went away leaves its locks to this.
            *("--l1-read-ttl-seconds", "120", "--l1-write-ttl-seconds", "120"),
            # Nobody subscribes to its log of stores and evictions, which would grow for 32,768 of them.
            *("--kv-event-log-size", "0"),
            *("--server-module", json.dumps(module)),
        ]

    async def _launch(self) -> None:
        environment = os.environ | {
            "LMCACHE_DISABLE_BANNER": "1",
            "LMCACHE_LOG_LEVEL": "WARNING",
            "LMCACHE_TRACK_USAGE": "false",
            "PYTHONWARNINGS": "ignore::FutureWarning",
            "PYTHONUNBUFFERED": "1",
        }
        self._socket.unlink(missing_ok=True)
        with self._log_path.open("ab") as log:
            # On this thread: the child dies with the thread that started it. Its own process group: Ctrl-C reaches
            # the engine first, which still unregisters from this server.
            self._child = subprocess.Popen(  # noqa: ASYNC220
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not await self._answers(timeout_s=PROBE_INTERVAL_S):
            if self._child.poll() is not None:
                raise ServerFailed(f"lmcache server ended with status {self._child.returncode}: {self._log_tail()}")
            if time.monotonic() > deadline:
                await self._end_child()
                raise ServerFailed(f"lmcache server did not answer within {START_TIMEOUT_S:.0f} s: {self._log_tail()}")
            await asyncio.sleep(0.1)

    async def _answers(self, timeout_s: float) -> bool:
        try:
            await self.call("ping", timeout_s)
        except RuntimeError:
            return False
        return True

    async def _watch(self) -> None:
        answered_at = started_at = time.monotonic()
        backoff_s = FIRST_BACKOFF_S
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            async with self._changing:
                child = self._child
                assert child is not None
                if child.poll() is None:
                    if await self._answers(timeout_s=HANG_TIMEOUT_S / 2):
                        answered_at = time.monotonic()
                        continue
                    if time.monotonic() - answered_at < HANG_TIMEOUT_S and child.poll() is None:
                        continue
                    logger.error("the LMCache server has not answered for %.0f s: killing it", HANG_TIMEOUT_S)
                if time.monotonic() - started_at > _STEADY_S:
                    backoff_s = FIRST_BACKOFF_S
                if await self._restart(backoff_s):
                    answered_at = started_at = time.monotonic()
                backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)

    async def _restart(self, backoff_s: float) -> bool:
        """Whether a new child answers."""
        assert self._child is not None
        self.restarts += 1
        logger.warning(
            "the LMCache server ended with status %s; serving goes on without a host tier, restart in %.1f s",
            self._child.poll(),
            backoff_s,
        )
        try:
            await self._replace(backoff_s)
        except ServerFailed as error:
            logger.error("restart failed: %s", error)
            return False
        return True

    async def _replace(self, wait_s: float = 0.0) -> None:
        was_back = self.state is ServerState.RUNNING
        self.state = ServerState.RESTARTING
        await self._kill_child()
        if was_back:
            await self.on_lost()
        await asyncio.sleep(wait_s)
        await self._launch()
        await self.on_back()
        self.state = ServerState.RUNNING
        logger.info("the LMCache server is up (pid %s), its cache is cold", self.pid)

    async def _kill_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            await asyncio.to_thread(self._child.wait)

    async def _end_child(self) -> None:
        child = self._child
        if child is None:
            return
        if child.poll() is None:
            child.terminate()
        try:
            await asyncio.to_thread(child.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            await self._kill_child()

    def _log_tail(self, lines: int = 12) -> str:
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on now. The server cannot inherit a socket, so another process could still take one; it
    then ends at its start, with the reason in its log."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
