"""A server of known timing that records what it is asked, and can fail on purpose."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry, Counter, generate_latest

KV_BLOCK_TOKENS = 4
HEARTBEAT_S = 0.02


@dataclass
class Seen:
    """One request: when it came and when its answer was complete (perf_counter seconds)."""

    session: str
    body: dict[str, Any]
    received_s: float
    finished_s: float = 0.0

    @property
    def prompt(self) -> list[int]:
        return self.body["prompt"]


@dataclass
class Stub:
    """``fail``: called with each request's number; a response it gives is sent instead of an answer.

    ``stalled_s``: how long the loop that serves it stood still, added up.
    """

    ttft_s: float = 0.0
    itl_s: float = 0.0
    max_model_len: int | None = 1 << 20
    fail: Callable[[int, web.Request], Awaitable[web.StreamResponse | None]] | None = None
    version: int | None = None
    remembers: bool = True
    stalled_s: float = 0.0
    seen: list[Seen] = field(default_factory=list)
    syncs: list[Any] = field(default_factory=list)
    open_streams: int = 0
    most_open_streams: int = 0
    queries: int = 0
    hits: int = 0
    _blocks: set[tuple[int, ...]] = field(default_factory=set)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/policy/sync", self._sync)
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/v1/chat/completions", self._answer)
        return app

    def of(self, session: str) -> list[Seen]:
        """What one agent sent, in order of arrival."""
        return [request for request in self.seen if request.session == session]

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "stub", "max_model_len": self.max_model_len}]})

    async def _metrics(self, _: web.Request) -> web.Response:
        registry = CollectorRegistry()
        values = {"prefix_cache_queries": self.queries, "prefix_cache_hits": self.hits, "external_prefix_cache_hits": 0}
        for name, value in values.items():
            Counter(f"vllm:{name}", name, ["engine"], registry=registry).labels("0").inc(value)
        return web.Response(body=generate_latest(registry))

    async def _sync(self, request: web.Request) -> web.Response:
        self.syncs.append(await request.json())
        self.version = (self.version or 0) + 1
        return web.json_response({"version": self.version})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        received_s = time.perf_counter()
        body = await request.json()
        seen = Seen(request.headers.get("X-Session-ID", ""), body, received_s)
        self.seen.append(seen)
        self._count_blocks(body.get("prompt", []))
        if self.fail is not None:
            failure = await self.fail(len(self.seen) - 1, request)
            if failure is not None:
                return failure
        self.open_streams += 1
        self.most_open_streams = max(self.most_open_streams, self.open_streams)
        try:
            return await self._stream(request, body, received_s)
        finally:
            self.open_streams -= 1
            seen.finished_s = time.perf_counter()

    async def _stream(self, request: web.Request, body: dict[str, Any], received_s: float) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream"}
        if self.version is not None:
            headers["x-policy-version"] = str(self.version)
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        chat = "messages" in body
        kind = {"id": "1", "object": "chat.completion.chunk" if chat else "text_completion", "model": "stub"}
        if chat:  # vLLM's first piece has a role and no content
            await response.write(
                _event({**kind, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
            )
        versions: list[int | None] = []
        for index in range(body["max_tokens"]):
            due_s = received_s + self.ttft_s + index * self.itl_s
            await asyncio.sleep(due_s - time.perf_counter())
            versions.append(self.version)
            choice: dict[str, Any] = {"index": 0, **({"delta": {"content": "x"}} if chat else {"text": "x"})}
            if index == body["max_tokens"] - 1 and self.version is not None:
                choice["weight_versions"] = _spans(versions)
            await response.write(_event({**kind, "choices": [choice]}))
        prompt_tokens = len(body["prompt"]) if not chat else sum(len(m["content"].split()) for m in body["messages"])
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": body["max_tokens"]}
        await response.write(_event({**kind, "choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    def _count_blocks(self, prompt: list[int]) -> None:
        """An endless prefix cache of small blocks, as an engine has one."""
        self.queries += len(prompt)
        hitting = True
        for end in range(KV_BLOCK_TOKENS, len(prompt) + 1, KV_BLOCK_TOKENS):
            prefix = tuple(prompt[:end])
            hitting = hitting and prefix in self._blocks
            self.hits += KV_BLOCK_TOKENS if hitting else 0
            if self.remembers:
                self._blocks.add(prefix)


@asynccontextmanager
async def serving(stub: Stub) -> AsyncIterator[str]:
    """Serve a stub in this process; its URL."""
    server = TestServer(stub.app())
    await server.start_server()
    measuring = asyncio.create_task(_measure_stalls(stub))
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        measuring.cancel()
        await server.close()


async def _measure_stalls(stub: Stub) -> None:
    """Client and server share this loop: where a loaded machine stops it, both are late by that much."""
    while True:
        due_s = time.perf_counter() + HEARTBEAT_S
        await asyncio.sleep(HEARTBEAT_S)
        stub.stalled_s += time.perf_counter() - due_s


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _spans(versions: list[int | None]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for index, version in enumerate(versions):
        if spans and spans[-1]["version"] == str(version):
            spans[-1]["end"] = index + 1
        else:
            spans.append({"version": str(version), "start": index, "end": index + 1})
    return spans
