"""A server that does nothing but keep time: what a client measures against it is the client's own.

It answers each request with ``max_tokens`` pieces, the first after a fixed time, the others a fixed time apart; a
piece that is late does not move the next. To cost little, it speaks just as much HTTP/1.1 as such a client needs.

    python -m bench_agentx.loopback PORT TTFT_S ITL_S
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

MODEL = "loopback"
VOCABULARY_SIZE = 32_000
CONTEXT_TOKENS = 1 << 20
_EVENTS_HEADER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def serve(port: int, ttft_s: float, itl_s: float) -> None:
    """Serve on 127.0.0.1 until cancelled. Run it in a process of its own, or it shares the client's core."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read_request(reader):
                path, body = request
                if path.endswith("/completions"):
                    await _answer(writer, json.loads(body), ttft_s, itl_s)
                else:
                    writer.write(_page(path))
                await writer.drain()
        except ConnectionError:
            pass  # the client went away
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", port, backlog=4096, limit=1 << 20)
    async with server:
        await server.serve_forever()


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes] | None:
    """Path and body of the next request; None when the client has closed the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    return first.split(" ")[1], await reader.readexactly(int(headers.get("content-length", "0")))


async def _answer(writer: asyncio.StreamWriter, body: dict[str, int], ttft_s: float, itl_s: float) -> None:
    started_s = time.perf_counter()
    writer.write(_EVENTS_HEADER)
    piece = _event({"choices": [{"index": 0, "text": " word", "finish_reason": None}]})
    for index in range(body["max_tokens"]):
        await asyncio.sleep(started_s + ttft_s + index * itl_s - time.perf_counter())
        writer.write(piece)
    usage = {"prompt_tokens": 0, "completion_tokens": body["max_tokens"]}
    writer.write(_event({"choices": [], "usage": usage}) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _page(path: str) -> bytes:
    models = json.dumps({"data": [{"id": MODEL, "max_model_len": CONTEXT_TOKENS}]}).encode()
    pages = {"/ready": b"", "/v1/models": models}
    status = b"200 OK" if path in pages else b"404 Not Found"
    page = pages.get(path, b"")
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(page), page)


def _event(value: object) -> bytes:
    return _chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
