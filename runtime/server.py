"""One server from start to end: vLLM's OpenAI app in this process, with the policy service around it. Knows vLLM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from runtime.checkpoint_source import ServedCheckpoint, managed_directory, materialise_anchor, user_checkpoint
from runtime.kv_routes import kv_router
from runtime.kv_service import start_kv, started_tier
from runtime.middleware import PolicyVersionHeader
from runtime.options import ADMIN_KEY_VARIABLE
from runtime.plugin import ENABLED_VARIABLE
from runtime.policy import PolicyService
from runtime.routes import AdminGuard, policy_router
from runtime.startup import progress_bar, start_policy
from sync.coordinator import Observer
from sync.stores import open_store
from sync.stores.base import Store

logger = logging.getLogger("rollout.server")
# EX_SOFTWARE: a supervisor must start the replica afresh, from the anchor.
POISONED_EXIT_STATUS = 70
# On a signal, running requests may finish for this long.
SHUTDOWN_TIMEOUT_S = 10


def serve(options: argparse.Namespace, observers: Sequence[Observer] = ()) -> int:
    """Serves until a signal or a poisoned engine; returns the exit status."""
    import uvloop

    os.environ[ENABLED_VARIABLE] = "1"
    options.worker_extension_cls = "runtime.worker.RolloutWorkerExtension"
    # vLLM's own default kills its processes at once, which leaves shared-memory segments to a garbage collector.
    options.shutdown_timeout = options.shutdown_timeout or SHUTDOWN_TIMEOUT_S
    with ExitStack() as stack:
        directory = stack.enter_context(managed_directory(options.policy_dir))
        store = open_store(options.policy_store) if options.policy_store else None
        checkpoint = _checkpoint(options, store, directory)
        options.model = str(checkpoint.path)
        if options.served_model_name is None:
            options.served_model_name = [options.model_tag or Path(options.policy_store).name or "policy"]
        return uvloop.run(_serve(options, checkpoint, store, directory, observers))


def _checkpoint(options: argparse.Namespace, store: Store | None, directory: Path) -> ServedCheckpoint:
    if options.model_tag is not None:
        return user_checkpoint(options.model_tag, options.policy_version)
    assert store is not None
    with progress_bar() as bar:
        return materialise_anchor(store, directory, bar.update)


async def _serve(
    options: argparse.Namespace,
    checkpoint: ServedCheckpoint,
    store: Store | None,
    directory: Path,
    observers: Sequence[Observer],
) -> int:
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.launcher import setup_server
    from vllm.utils.system_utils import decorate_logs

    decorate_logs("APIServer", skip_if_decorated=True)

    def interrupt_start(*_: object) -> None:
        raise KeyboardInterrupt("terminated")

    # Until the HTTP server installs its own handlers.
    signal.signal(signal.SIGTERM, interrupt_start)
    address, listener = setup_server(options, reuse_port=False)
    service: PolicyService | None = None
    try:
        async with started_tier(options) as tier, build_async_engine_client(options) as async_llm:
            service = await start_policy(async_llm, checkpoint, store, options, directory, observers)
            service.kv = await start_kv(tier, service, async_llm)
            stop = asyncio.create_task(_stop_when_poisoned(service))
            try:
                shutdown = await _serve_http(options, async_llm, service, address, listener)
            finally:
                stop.cancel()
                await service.close()
        await shutdown
    finally:
        listener.close()
    return POISONED_EXIT_STATUS if service.poisoned.is_set() else 0


async def _stop_when_poisoned(service: PolicyService) -> None:
    await service.poisoned.wait()
    logger.critical("engine memory may hold a mix of policy versions: stopping")
    os.kill(os.getpid(), signal.SIGTERM)


async def _serve_http(
    options: argparse.Namespace, async_llm: Any, service: PolicyService, address: str, listener: socket.socket
) -> Any:
    """vLLM's `build_and_serve`, with our routes and middleware in the app."""
    import vllm.envs as envs
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.launcher import serve_http
    from vllm.entrypoints.launchers.utils.server_utils import get_uvicorn_log_config

    tasks = await async_llm.get_supported_tasks()
    app = build_app(options, tasks, async_llm.model_config)
    guard = AdminGuard(os.environ.get(ADMIN_KEY_VARIABLE))
    app.include_router(policy_router(service, guard))
    assert service.kv is not None
    app.include_router(kv_router(service.kv, guard))
    # vLLM has built its middleware stack by now; ours goes around it.
    stack = app.middleware_stack or app.build_middleware_stack()
    app.middleware_stack = PolicyVersionHeader(stack, lambda: service.version)
    await init_app_state(async_llm, app.state, options, tasks)
    service.start()
    logger.info("serving policy version %d on %s", service.version, address)
    log_config = get_uvicorn_log_config(options)
    return await serve_http(
        app,
        sock=listener,
        enable_ssl_refresh=options.enable_ssl_refresh,
        host=options.host,
        port=options.port,
        log_level=options.uvicorn_log_level,
        access_log=not options.disable_uvicorn_access_log,
        timeout_keep_alive=envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
        ssl_keyfile=options.ssl_keyfile,
        ssl_certfile=options.ssl_certfile,
        ssl_ca_certs=options.ssl_ca_certs,
        ssl_cert_reqs=options.ssl_cert_reqs,
        ssl_ciphers=options.ssl_ciphers,
        h11_max_incomplete_event_size=options.h11_max_incomplete_event_size,
        h11_max_header_count=options.h11_max_header_count,
        **({} if log_config is None else {"log_config": log_config}),
    )
