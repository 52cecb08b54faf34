"""ASGI middleware: every response says which policy version it started under (`x-policy-version`), and which tokens
came from which version (`runtime.version_spans`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from runtime.admission import CURRENT_STAMP, PolicyStamp
from runtime.version_spans import SpanWriter

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Callable[[], Awaitable[Message]], Send], Awaitable[None]]

HEADER = b"x-policy-version"


class PolicyVersionHeader:
    """Holds the response start back until the first body bytes: a stream's first token is known to be under way then.

    Responses that no engine request was made for (errors, model lists) carry the version served at that moment.
    """

    def __init__(self, app: Application, current_version: Callable[[], int]) -> None:
        self._app = app
        self._current_version = current_version

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stamp = PolicyStamp()
        token = CURRENT_STAMP.set(stamp)
        try:
            await self._app(scope, receive, _Response(stamp, self._current_version, send).send)
        finally:
            CURRENT_STAMP.reset(token)


class _Response:
    """One response on its way out."""

    def __init__(self, stamp: PolicyStamp, current_version: Callable[[], int], send: Send) -> None:
        self._stamp = stamp
        self._current_version = current_version
        self._send = send
        self._start: Message | None = None
        self._writer: SpanWriter | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body":
            await self._send_start()
            await self._send(message)
            return
        if self._writer is None:
            assert self._start is not None
            self._writer = SpanWriter(self._stamp, list(self._start.get("headers", ())))
        is_last = not message.get("more_body", False)
        body = self._writer.write(message.get("body", b""), is_last)
        if self._writer.is_document and not is_last:
            return
        await self._send_start(len(body) if self._writer.is_document else None)
        await self._send({**message, "body": body})

    async def _send_start(self, length: int | None = None) -> None:
        """`length`: of the whole body, where it is known to have changed."""
        if self._start is None:
            return
        start, self._start = self._start, None
        version = self._current_version() if self._stamp.version is None else self._stamp.version
        headers = [*start.get("headers", ()), (HEADER, str(version).encode())]
        if length is not None:
            headers = [header for header in headers if header[0].lower() != b"content-length"]
            headers.append((b"content-length", str(length).encode()))
        start["headers"] = headers
        await self._send(start)
