"""Spans in the bytes of a response, however the bytes are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

from runtime.admission import CURRENT_STAMP, PolicyStamp, VersionSpan
from runtime.middleware import PolicyVersionHeader
from runtime.version_spans import SpanWriter

JSON, EVENTS = [(b"content-type", b"application/json")], [(b"content-type", b"text/event-stream; charset=utf-8")]
SPAN = {"version": "7", "start": 0, "end": 3}


def stamp(*spans: list[VersionSpan] | None) -> PolicyStamp:
    filled = PolicyStamp()
    filled.spans = list(spans)
    return filled


def one() -> PolicyStamp:
    return stamp([VersionSpan("7", 0, 3)])


def event(body: dict[str, Any], name: str = "") -> bytes:
    prefix = f"event: {name}\n" if name else ""
    return f"{prefix}data: {json.dumps(body, separators=(',', ':'))}\n\n".encode()


def choice(finish: str | None, text: str = "", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}


STREAM = event(choice(None, 'a "finish_reason":"stop" \n\n in a text')) + event(choice("stop")) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("size", [1, 7, 50, len(STREAM)])
def test_events_are_whole_wherever_a_stream_is_cut(size: int) -> None:
    writer = SpanWriter(one(), EVENTS)
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    written = b"".join([*(writer.write(piece, False) for piece in pieces), writer.write(b"", True)])
    first, last, done, end = written.split(b"\n\n")
    assert first + b"\n\n" == event(choice(None, 'a "finish_reason":"stop" \n\n in a text'))
    assert json.loads(last.removeprefix(b"data: "))["choices"][0]["weight_versions"] == [SPAN]
    assert (done, end) == (b"data: [DONE]", b"")


def test_no_event_is_held_back_once_it_is_whole() -> None:
    writer = SpanWriter(one(), EVENTS)
    assert writer.write(event(choice(None)) + b"data: {", False) == event(choice(None))


def test_turns_of_a_response_are_one_after_the_other() -> None:
    turns = stamp(
        [VersionSpan("6", 0, 2), VersionSpan("7", 2, 5)],
        [VersionSpan("7", 0, 4), VersionSpan("8", 4, 6)],
    )
    body = {"type": "response.completed", "response": {"object": "response", "id": "r"}}
    written = SpanWriter(turns, EVENTS).write(event(body, "response.completed"), False)
    spans = json.loads(written.partition(b"data: ")[2])["response"]["weight_versions"]
    assert [tuple(span.values()) for span in spans] == [("6", 0, 2), ("7", 2, 9), ("8", 9, 11)]


def test_a_response_whose_turn_has_not_told_carries_none() -> None:
    body = json.dumps({"object": "response"}).encode()
    assert SpanWriter(stamp([VersionSpan("7", 0, 3)], None), JSON).write(body, True) == body


@pytest.mark.parametrize(
    "body",
    [
        choice("stop", weight_versions=[{"version": "6", "start": 0, "end": 1}]),  # a route with spans of its own
        {"choices": []},
        {"error": {"message": "no"}},
        ["a list"],
    ],
)
def test_other_bodies_leave_as_they_came(body: Any) -> None:
    written = json.dumps(body).encode()
    assert SpanWriter(one(), JSON).write(written, True) == written


def test_a_compressed_body_is_left_alone() -> None:
    writer = SpanWriter(one(), [*JSON, (b"Content-Encoding", b"gzip")])
    assert not writer.is_document
    assert writer.write(b"\x1f\x8b", True) == b"\x1f\x8b"


def test_a_document_has_its_new_length() -> None:
    app = FastAPI()

    @app.get("/v1/completions")
    async def complete() -> JSONResponse:
        current = CURRENT_STAMP.get()
        assert current is not None
        current.spans = [[VersionSpan("7", 0, 3)]]
        return JSONResponse(choice("stop", "größer"))

    answer = TestClient(PolicyVersionHeader(app, lambda: 7)).get("/v1/completions")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.json()["choices"][0] == {**choice("stop", "größer")["choices"][0], "weight_versions": [SPAN]}
