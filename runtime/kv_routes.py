"""HTTP routes of the KV tier: `GET /kv`, `POST /kv/canary`."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from runtime.kv_service import KvService
from runtime.routes import AdminGuard


def kv_router(service: KvService, guard: AdminGuard) -> APIRouter:
    """The routes over one tier."""
    router = APIRouter()

    @router.get("/kv")
    async def kv() -> JSONResponse:
        """Capacity, use, entries by namespace, hit tokens by tier and policy version, the canary's last report."""
        return JSONResponse(await service.describe())

    @router.post("/kv/canary", dependencies=[Depends(guard)])
    async def canary() -> JSONResponse:
        """Stores, evicts, reloads and compares a prompt. 200 if the tier works, 503 with the reason if not."""
        report = await service.run_canary()
        if report is None:
            return JSONResponse({"works": False, "reason": "started with --kv-tier off"}, 409)
        return JSONResponse(report.to_json(), 200 if report.works else 503)

    return router
