"""ASGI middleware: every response says which policy version it started under (`x-policy-version`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from runtime.admission import CURRENT_STAMP, PolicyStamp

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
        held: Message | None = None

        async def send_stamped(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                held = message
                return
            if held is not None:
                start, held = held, None
                version = self._current_version() if stamp.version is None else stamp.version
                start["headers"] = [*start.get("headers", ()), (HEADER, str(version).encode())]
                await send(start)
            await send(message)

        try:
            await self._app(scope, receive, send_stamped)
        finally:
            CURRENT_STAMP.reset(token)
