"""The API process's end of the planner process: starts it, asks for plans, and notices when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from sync.channel import new_address
from sync.errors import PublicationError, Rejection, StoreError
from sync.layout import LayoutError, LayoutMap
from sync.planner import write_layouts

# Events carry a checksum a tensor; the largest public models have tens of thousands of tensors.
EVENT_LIMIT_BYTES = 64 << 20
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0

Event = dict[str, Any]


class PlannerDied(RuntimeError):
    """The planner process ended without an answer. The next plan starts a new one."""


class PlannerClient:
    """One planner process, started when it is first needed and again if it died."""

    def __init__(self, store_url: str, layouts: Sequence[LayoutMap], threads: int) -> None:
        self._store_url = store_url
        self._layouts = tuple(layouts)
        self._threads = threads
        self._process: asyncio.subprocess.Process | None = None
        self.address = ""

    async def ensure_started(self) -> None:
        """Starts the process unless it runs. Raises PlannerDied if it does not come up."""
        if self._process is not None and self._process.returncode is None:
            return
        self.address = new_address()
        layouts = write_layouts(self._layouts)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sync.planner", "--store", self._store_url, "--address", self.address),
                *("--layouts-fd", str(layouts), "--threads", str(self._threads)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(layouts,),
                limit=EVENT_LIMIT_BYTES,
            )
        finally:
            os.close(layouts)
        try:
            event = await asyncio.wait_for(self._next_event(), START_TIMEOUT_S)
        except TimeoutError as error:
            raise PlannerDied(f"the planner did not start within {START_TIMEOUT_S:.0f} s") from error
        assert event["event"] == "ready", event

    async def plan(self, serving: int, target: int, on_event: Callable[[Event], None]) -> Event:
        """Plans `serving -> target`; the ranks must be staging `target` from `address` meanwhile.

        Returns the `planned` event. Raises the planner's own PublicationError, StoreError or LayoutError, or
        PlannerDied. `on_event` sees the events before that.
        """
        process = self._process
        assert process is not None and process.stdin is not None
        command = {"command": "plan", "serving": serving, "target": target}
        try:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            await process.stdin.drain()
        except ConnectionError as error:
            raise PlannerDied("the planner process is gone") from error
        while True:
            event = await self._next_event()
            if event["event"] == "planned":
                return event
            if event["event"] == "failed":
                raise _error(event)
            on_event(event)

    async def _next_event(self) -> Event:
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise PlannerDied(f"the planner process ended with status {code}; its log says why")
        event: Event = json.loads(line)
        return event

    async def kill(self) -> None:
        """Ends the process at once; what it had in shared memory goes with it."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """Ends the process by closing its input; kills it if it does not end."""
        if self._process is None or self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            await self.kill()


def _error(event: Event) -> Exception:
    """The planner's error, rebuilt on this side."""
    kind = event["kind"]
    if kind == PublicationError.__name__:
        return PublicationError(
            Rejection(event["rejection"]),
            event["detail"],
            version=event["version"],
            file=event["file"],
            tensor=event["tensor"],
        )
    if kind == StoreError.__name__:
        return StoreError(event["message"])
    if kind == LayoutError.__name__:
        return LayoutError(event["message"])
    return RuntimeError(f"planner: {kind}: {event['message']}")
