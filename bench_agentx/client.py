"""The HTTP client: one streamed OpenAI request, and when each piece of its answer arrived.

Server-sent events are read as they come off the socket; a piece's time is taken before it is parsed. What goes
wrong is part of the result (``Reply.error``), never an exception: a benchmark counts failures.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

EndpointType = Literal["completions", "chat"]

MAX_EVENT_BYTES = 16 << 20
MAX_PAGE_BYTES = 64 << 20
# Servers close idle connections after 5 s (uvicorn's default): let go before they do.
_KEEP_ALIVE_S = 4.0
_GET_TIMEOUT = aiohttp.ClientTimeout(total=15.0)
_CONTEXT_OVERFLOW = ("context length", "maximum context", "context_length_exceeded", "prompt is too long")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go. ``base_url`` has no ``/v1``; ``extra_body`` is merged into every request."""

    base_url: str
    model: str
    type: EndpointType
    api_key: str | None = field(default=None, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.base_url + ("/v1/completions" if self.type == "completions" else "/v1/chat/completions")

    def body(self, prompt: bytes, output_tokens: int) -> bytes:
        """A request for exactly ``output_tokens`` tokens. ``prompt``: JSON, of token ids or of messages."""
        rest = {
            "model": self.model,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra_body,
        }
        field = b"prompt" if self.type == "completions" else b"messages"
        return b'{"%s":%s,%s' % (field, prompt, json.dumps(rest).encode()[1:])


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Output tokens ``[start, end)`` came from policy version ``version``."""

    version: int
    start: int
    end: int


@dataclass(slots=True)
class Reply:
    """What came back. Times are ``time.perf_counter()`` seconds; ``arrivals`` one for each piece with tokens.

    ``error``: None, ``http_<status>``, ``context_overflow``, ``connect``, ``disconnected``, ``stalled``,
    ``truncated``, ``protocol``, ``server`` (an error event inside the stream) or ``cancelled``.
    """

    sent_s: float = 0.0
    arrivals: array[float] = field(default_factory=lambda: array("d"))
    status: int | None = None
    error: str | None = None
    error_message: str = ""
    retry_after_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    policy_version: int | None = None
    version_spans: tuple[VersionSpan, ...] = ()

    def fail(self, error: str, message: object) -> None:
        self.error = error
        self.error_message = str(message)[:500]


class Client:
    """A pool of connections without a limit of its own; used as an async context manager."""

    def __init__(self, endpoint: Endpoint, stall_timeout_s: float) -> None:
        self.endpoint = endpoint
        headers = {"Content-Type": "application/json"}
        if endpoint.api_key:
            headers["Authorization"] = f"Bearer {endpoint.api_key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=stall_timeout_s),
            headers=headers,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get_text(self, path: str) -> str | None:
        """A GET of the server: its text, or None where it has no such route or does not answer."""
        try:
            async with self._session.get(self.endpoint.base_url + path, timeout=_GET_TIMEOUT) as response:
                return (await _read_page(response)).decode() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def post_json(self, url: str, body: Any) -> tuple[int, Any]:
        """A POST of any URL: status, and the answer (parsed where it is JSON)."""
        async with self._session.post(url, json=body) as response:
            page = await _read_page(response)
            try:
                return response.status, json.loads(page)
            except ValueError:
                return response.status, page.decode(errors="replace")

    async def send(self, body: bytes, headers: Mapping[str, str], reply: Reply) -> None:
        """One request, its answer written into ``reply`` as it comes; cancelling keeps what has come."""
        reply.sent_s = time.perf_counter()
        try:
            async with self._session.post(self.endpoint.url, data=body, headers=headers) as response:
                reply.status = response.status
                reply.policy_version = _integer(response.headers.get("x-policy-version"))
                if response.status == 200:
                    await _read_stream(response.content, reply)
                else:
                    _read_failure(response, await _read_page(response), reply)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            reply.fail("connect", error)
        except (aiohttp.ServerTimeoutError, TimeoutError) as error:
            reply.fail("stalled", error)
        except (aiohttp.ClientError, ConnectionError) as error:
            reply.fail("disconnected", error)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reply.fail("protocol", f"{type(error).__name__}: {error}")


async def _read_page(response: aiohttp.ClientResponse) -> bytes:
    """A body that is no stream. Raises aiohttp.ClientPayloadError past ``MAX_PAGE_BYTES``."""
    page = bytearray()
    async for piece in response.content.iter_any():
        page += piece
        if len(page) > MAX_PAGE_BYTES:
            raise aiohttp.ClientPayloadError(f"{response.url}: more than {MAX_PAGE_BYTES} bytes")
    return bytes(page)


def _read_failure(response: aiohttp.ClientResponse, body: bytes, reply: Reply) -> None:
    message = body.decode(errors="replace")
    overflow = any(sign in message.lower() for sign in _CONTEXT_OVERFLOW)
    reply.fail("context_overflow" if overflow else f"http_{response.status}", message)
    retry_after = response.headers.get("Retry-After", "")
    reply.retry_after_s = float(retry_after) if retry_after.isdigit() else None


async def _read_stream(stream: aiohttp.StreamReader, reply: Reply) -> None:
    pending = b""
    done = False
    async for piece in stream.iter_any():
        arrived_s = time.perf_counter()
        *events, pending = (pending + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(pending) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    done = done or data == b"[DONE]"
                    if not done:
                        _read_event(json.loads(data), arrived_s, reply)
    if not done and reply.error is None:
        reply.fail("truncated", "the stream ended without [DONE]")


def _read_event(event: dict[str, Any], arrived_s: float, reply: Reply) -> None:
    if event.get("error"):
        reply.fail("server", event["error"])
    usage = event.get("usage")
    if usage:
        reply.prompt_tokens = _count(usage["prompt_tokens"])
        reply.completion_tokens = _count(usage["completion_tokens"])
        cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        reply.cached_tokens = None if cached_tokens is None else _count(cached_tokens)
    for choice in event.get("choices", ())[:1]:
        if _carries_tokens(choice):
            reply.arrivals.append(arrived_s)
        spans = choice.get("weight_versions")
        if spans:
            reply.version_spans = _version_spans(spans)


def _carries_tokens(choice: dict[str, Any]) -> bool:
    """A completions piece always does, even when its tokens make no text yet; a chat piece if it has content."""
    delta = choice.get("delta")
    if delta is None:
        return True
    fields = ("content", "reasoning", "reasoning_content", "tool_calls")
    return any(delta.get(name) for name in fields)


def _version_spans(spans: list[dict[str, Any]]) -> tuple[VersionSpan, ...]:
    """The spans, or none where a server names its versions otherwise than by number."""
    versions = [_integer(str(span["version"])) for span in spans]
    return tuple(
        VersionSpan(version, _count(span["start"]), _count(span["end"]))
        for version, span in zip(versions, spans, strict=True)
        if version is not None and None not in versions
    )


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a count, found {value!r:.80}")
    return value


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
