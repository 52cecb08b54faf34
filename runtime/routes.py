"""HTTP routes of the policy: `/policy`, `/policy/sync`, `/ready`. vLLM's own routes stay as they are."""

from __future__ import annotations

import ipaddress
import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from kvtier.namespace import OnUpdate
from runtime.kv_options import kv_override
from runtime.policy import PolicyService, SyncRefused
from sync.coordinator import EnginePoisoned, SyncBusy
from sync.errors import PublicationError, StoreError
from sync.layout import LayoutError
from sync.planner_client import PlannerDied

# Whoever waits for a sync comes back after about one.
RETRY_AFTER_S = 2
MAX_BODY_BYTES = 4096


class SyncRequest(BaseModel):
    """`{"version": 7}` or `{"version": "latest"}`; `kv_on_update` and `kv_max_lag` override the server's once."""

    model_config = ConfigDict(extra="forbid")
    version: Annotated[int, Field(ge=0)] | Literal["latest"] = "latest"
    kv_on_update: OnUpdate | None = None
    kv_max_lag: Annotated[int, Field(ge=1)] | None = None


class AdminGuard:
    """Lets admin requests in: with the key where one is set, else only from this machine."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def __call__(self, request: Request) -> None:
        size = request.headers.get("content-length", "")
        if not size.isdigit() or int(size) > MAX_BODY_BYTES:
            raise HTTPException(413, f"send a body with a content-length of at most {MAX_BODY_BYTES} bytes")
        if self._key is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not secrets.compare_digest(given.encode(), self._key.encode()):
                raise HTTPException(401, "admin key missing or wrong: Authorization: Bearer KEY")
        elif not _is_local(request):
            raise HTTPException(403, "admin routes are closed to other machines: start with --policy-admin-key")


def _is_local(request: Request) -> bool:
    # No client address means a Unix socket. A proxy on this machine speaks for others, so it does not count.
    if "x-forwarded-for" in request.headers or "forwarded" in request.headers:
        return False
    return request.client is None or ipaddress.ip_address(request.client.host).is_loopback


def policy_router(service: PolicyService, guard: AdminGuard) -> APIRouter:
    """The routes over one policy service."""
    router = APIRouter()

    @router.get("/policy")
    async def policy() -> JSONResponse:
        """Version, state, last sync with its phase timings, ledger size."""
        return JSONResponse(service.describe())

    @router.get("/ready")
    async def ready() -> JSONResponse:
        """200 once the store's latest version at start-up is served, else 503."""
        status = 200 if service.is_ready else 503
        body: dict[str, Any] = {"ready": service.is_ready, "version": service.version}
        if service.kv is not None:
            body["kv_tier"] = service.kv.summary()
        return JSONResponse(body, status)

    @router.post("/policy/sync", dependencies=[Depends(guard)])
    async def sync(request: SyncRequest) -> JSONResponse:
        """Syncs and waits. 200 with the report (null if served already), 409 while another sync runs."""
        version = None if request.version == "latest" else request.version
        try:
            kv_update = kv_override(request.kv_on_update, request.kv_max_lag)
        except ValueError as error:
            return _failure(422, error)
        try:
            report = await service.sync(version, kv_update)
        except SyncBusy as error:
            return _failure(409, error, {"retry-after": str(RETRY_AFTER_S)})
        except SyncRefused as error:
            return _failure(409, error)
        except PublicationError as error:
            return _failure(422, error, extra={"rejection": error.rejection.value})
        except StoreError as error:
            return _failure(502, error, {"retry-after": str(RETRY_AFTER_S)})
        except EnginePoisoned as error:
            service.poison(error)
            return _failure(500, error)
        except (LayoutError, PlannerDied, RuntimeError) as error:
            return _failure(500, error)
        return JSONResponse({"version": service.version, "sync": None if report is None else report.to_json()})

    def _failure(
        status: int, error: Exception, headers: dict[str, str] | None = None, extra: dict[str, str] | None = None
    ) -> JSONResponse:
        body = {"error": type(error).__name__, "message": str(error), "version": service.version}
        return JSONResponse(body | (extra or {}), status, headers)

    return router
