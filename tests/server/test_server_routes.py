"""Policy routes, the admin guard, the version header and the gate, without an engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

from kvtier.namespace import Namespace
from runtime.admission import CURRENT_STAMP, AdmissionGate, PolicyStamp
from runtime.middleware import PolicyVersionHeader
from runtime.policy import PolicyService
from runtime.routes import AdminGuard, policy_router
from sync.coordinator import SyncBusy
from sync.errors import PublicationError, Rejection


class FailingCoordinator:
    """A coordinator whose next sync fails in a chosen way."""

    version = 4
    is_syncing = False

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def sync(self, target: int) -> None:
        raise self._error


def client(service: PolicyService, key: str | None = None, peer: str = "127.0.0.1") -> TestClient:
    app = FastAPI()
    app.include_router(policy_router(service, AdminGuard(key)))
    return TestClient(app, client=(peer, 50000))


def failing(error: Exception) -> PolicyService:
    service = PolicyService(4)
    service.coordinator, service.store = FailingCoordinator(error), object()  # type: ignore[assignment]
    return service


def test_a_server_without_a_store_says_so() -> None:
    http = client(PolicyService(3, refusal="started without --policy-store"))
    assert http.get("/policy").json()["version"] == 3
    answer = http.post("/policy/sync", json={"version": 5})
    assert answer.status_code == 409
    assert "--policy-store" in answer.json()["message"]
    assert http.get("/ready").status_code == 200


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SyncBusy("a sync to version 5 is running"), 409),
        (PublicationError(Rejection.BAD_FRAME, "broken", version=5, tensor="w"), 422),
        (RuntimeError("rank 0 could not stage"), 500),
    ],
)
def test_a_refused_sync_answers_with_its_reason(error: Exception, status: int) -> None:
    answer = client(failing(error)).post("/policy/sync", json={"version": 5})
    assert answer.status_code == status
    assert answer.json()["message"] == str(error)
    assert answer.json()["version"] == 4


@pytest.mark.parametrize("body", [{"version": -1}, {"version": "newest"}, {"version": 1, "force": True}, [], "x"])
def test_a_malformed_sync_request_is_rejected(body: Any) -> None:
    assert client(PolicyService(0)).post("/policy/sync", json=body).status_code == 422


def test_admin_routes_are_closed_to_other_machines_by_default() -> None:
    http = client(PolicyService(0), peer="192.0.2.7")
    assert http.post("/policy/sync", json={}).status_code == 403
    assert http.get("/policy").status_code == 200


def test_an_oversized_or_unsized_admin_body_is_not_read() -> None:
    http = client(PolicyService(0))
    assert http.post("/policy/sync", content=b" " * 5000).status_code == 413
    assert http.post("/policy/sync", content=(chunk for chunk in [b"{}"])).status_code == 413


def test_a_proxy_on_this_machine_does_not_open_admin_routes() -> None:
    answer = client(PolicyService(0)).post("/policy/sync", json={}, headers={"x-forwarded-for": "192.0.2.7"})
    assert answer.status_code == 403


def test_with_a_key_admin_routes_need_it_from_everywhere() -> None:
    for peer in ("127.0.0.1", "192.0.2.7"):
        http = client(PolicyService(0), key="secret", peer=peer)
        assert http.post("/policy/sync", json={}).status_code == 401
        assert http.post("/policy/sync", json={}, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert http.post("/policy/sync", json={}, headers={"authorization": "Bearer secret"}).status_code == 409


def test_a_stream_carries_the_version_it_started_on_even_if_it_was_moved_before_its_first_token() -> None:
    app = FastAPI()

    @app.get("/stream")
    async def stream(request: Request) -> StreamingResponse:
        async def tokens() -> Any:
            stamp = CURRENT_STAMP.get()
            assert stamp is not None
            stamp.version = 8  # what `AdmissionGate.enter` does for a request that had not started
            yield b"first"
            stamp.version = 9  # a commit in the middle of the stream
            yield b"second"

        return StreamingResponse(tokens())

    wrapped = PolicyVersionHeader(app, lambda: 3)
    http = TestClient(wrapped)
    assert http.get("/stream").headers["x-policy-version"] == "8"
    assert http.get("/missing").headers["x-policy-version"] == "3"


def test_a_request_waits_while_a_policy_is_written_and_starts_under_the_new_one() -> None:
    async def run() -> None:
        gate = AdmissionGate(1)
        stamp = PolicyStamp()
        CURRENT_STAMP.set(stamp)
        salt = await gate.admit("a", None)
        gate.close()
        late = asyncio.create_task(gate.admit("b", "caller"))
        await asyncio.sleep(0.01)
        assert not late.done()
        gate.enter(2, Namespace(2, 1), moved=["a"])
        gate.open()
        assert salt != await late
        assert stamp.version == 2, "the waiting request was moved"

    asyncio.run(run())
