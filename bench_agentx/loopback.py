"""A server that does nothing but keep time: what a client measures against it is the client's own.

Answers each request with ``max_tokens`` pieces, the first after ``ttft_s``, the others ``itl_s`` apart on a fixed
schedule (a piece that is late does not move the next).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from aiohttp import web

MODEL = "loopback"
VOCABULARY_SIZE = 32_000
CONTEXT_TOKENS = 1 << 20


def loopback_app(ttft_s: float, itl_s: float) -> web.Application:
    """The application; serve it in a process of its own, or it shares the client's core."""

    async def ready(_: web.Request) -> web.Response:
        return web.Response()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL, "max_model_len": CONTEXT_TOKENS}]})

    async def completions(request: web.Request) -> web.StreamResponse:
        started_s = time.perf_counter()
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        piece = _event({"choices": [{"index": 0, "text": " word", "finish_reason": None}]})
        for index in range(body["max_tokens"]):
            await asyncio.sleep(started_s + ttft_s + index * itl_s - time.perf_counter())
            await response.write(piece)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/ready", ready)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    return app


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


if __name__ == "__main__":
    port, ttft, itl = sys.argv[1:]
    web.run_app(loopback_app(float(ttft), float(itl)), host="127.0.0.1", port=int(port), print=None, access_log=None)
