"""A server as a child process: started, waited for, and always stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from bench_agentx.workload import ServerError

_POLL_S = 0.5
_STOP_S = 60.0
_LOG_TAIL_BYTES = 4000


@asynccontextmanager
async def child_server(command: Sequence[str], port: int, log: Path, ready_timeout_s: float) -> AsyncIterator[str]:
    """Start ``command`` and yield its URL once ``GET /ready`` answers 200; stop it, and its children, after.

    Its output goes to ``log``. Raises ServerError, with the end of the log, if it cannot start, ends, or is not
    ready in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                _program(command[0]),
                *command[1:],
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                process_group=0,
            )
        except OSError as error:
            raise ServerError(f"cannot start {command[0]!r}: {error}") from error
        try:
            url = f"http://127.0.0.1:{port}"
            await _wait_until_ready(process, url, command, log, ready_timeout_s)
            yield url
        finally:
            await _stop(process)


def free_port() -> int:
    """A TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _program(name: str) -> str:
    """The program on the PATH, or beside this Python: a virtual environment's scripts work without activating it."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent)) or name


async def _wait_until_ready(
    process: asyncio.subprocess.Process, url: str, command: Sequence[str], log: Path, timeout_s: float
) -> None:
    name = " ".join(command)
    try:
        async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
            while not await _is_ready(session, url):
                if process.returncode is not None:
                    raise ServerError(f"{name}: ended with {process.returncode} before it was ready\n{_tail(log)}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ServerError(f"{name}: not ready after {timeout_s:g} s\n{_tail(log)}") from None


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/ready", timeout=aiohttp.ClientTimeout(total=5.0)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _stop(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            continue
    await process.wait()


def _tail(log: Path) -> str:
    return f"the end of {log}:\n" + log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
