"""The LMCache connector, made fit for policy changes and for a server that dies. Knows vLLM and LMCache 0.5.6.

vLLM builds one in the scheduler and one in each worker (`kv_connector_module_path`, see `kvtier.wiring`). Beyond
LMCache's own:
- a waiting request can be moved to another namespace (the connector keeps its own copy of the salt);
- a lookup costs a request one step of the engine, not two: its second message goes out as the first is answered;
- both halves can be told that the server is gone, instead of finding out at the next heartbeat, and get fresh
  sockets, so that nothing queued for the dead server reaches the next one;
- what a failed load left uncomputed is never counted as computed, so it is never stored.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import vllm.triton_utils.dispatcher as kernel_dispatcher
import zmq
from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestState
from lmcache.v1.multiprocess.futures import MessagingFuture
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory
from lmcache.v1.platform.devices.cpu.shm import CpuShmTensorWrapper
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.request import Request

from kvtier.segments import segment_prefix

logger = logging.getLogger("rollout.kv")
# So that leftovers of killed workers are provably ours.
CpuShmTensorWrapper.SHM_NAME_PREFIX = f"/{segment_prefix()}"


class PolicyLMCacheConnector(LMCacheMPConnector):  # type: ignore[misc]
    """See the module."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role is KVConnectorRole.WORKER:
            self._registering = threading.Lock()
            self._register = self.worker_adapter._reregister_kv_caches_callback
            self.worker_adapter._reregister_kv_caches_callback = self._register_once

    # ---- scheduler half

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        unanswered = self.scheduler_adapter._unacked_lookups
        was_sent = request.request_id in unanswered
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if not was_sent and (lookup := unanswered.get(request.request_id)) is not None:
            for url, future in lookup.futures.items():
                future.set_result = partial(self._ask_for_hits, request.request_id, lookup, url, future.set_result)
        return found

    def _ask_for_hits(
        self, request_id: str, lookup: Any, url: str, acknowledge: Callable[[None], None], answer: None
    ) -> None:
        """Runs in LMCache's messaging thread when `lookup` is acknowledged: asks for its outcome at once.

        LMCache asks when the scheduler next looks, a step later, and the answer is seen another step later. Where the
        acknowledgement came before this was set up, that is what happens.
        """
        adapter = self.scheduler_adapter
        if adapter._unacked_lookups.get(request_id) is lookup:  # Else it was given up, by a move or with its server.
            query = adapter.req_clients[url].query_prefetch_status(request_id)
            adapter._lookup_status.setdefault(request_id, {})[url] = query, time.monotonic()
        # Only now: a scheduler that sees the acknowledgement asks for itself where nobody has.
        acknowledge(answer)

    def move_request(self, request: Request) -> None:
        """Call after `request.cache_salt` has changed, while nothing is scheduled.

        What was looked up for it in the old namespace is forgotten. A load in flight lands in blocks that the
        scheduler then gives back (`kvtier.scheduler`); the request is computed, and stored under its new salt.
        """
        tracker = self.request_trackers.get(request.request_id)
        if tracker is None:
            return
        if tracker.state is LMCacheMPRequestState.PREFETCHING:
            self._forget_lookup(request.request_id)
            del self.request_trackers[request.request_id]
        else:
            tracker.cache_salt = request.cache_salt or ""

    def _forget_lookup(self, request_id: str) -> None:
        adapter, tracker = self.scheduler_adapter, self.request_trackers[request_id]
        hit_tokens = adapter._finished_lookup_results.get(request_id, 0)
        if hit_tokens:
            adapter.free_lookup_locks(
                tracker.get_token_ids(), 0, hit_tokens, request_id, tracker.cache_salt, tracker.request_configs
            )
        # The locks of a lookup that is still under way expire in the server.
        adapter.cleanup_lookup_result(request_id)

    def scheduler_lost_server(self) -> None:
        """The server is dead: lookups under way are misses, new ones are not sent."""
        adapter = self.scheduler_adapter
        for event in adapter._health_events.values():
            event.clear()
        for request_id, tracker in list(self.request_trackers.items()):
            if tracker.state is LMCacheMPRequestState.PREFETCHING:
                adapter.cleanup_lookup_result(request_id)
                del self.request_trackers[request_id]
        for url, client in adapter.req_clients.items():
            adapter.req_clients[url] = _fresh_client(url, client)
        for heartbeat in (adapter._heartbeats or {}).values():
            _retire(heartbeat)
        adapter._heartbeats = None

    def scheduler_found_server(self) -> None:
        """A new server answers, and all workers are registered with it."""
        for event in self.scheduler_adapter._health_events.values():
            event.set()

    def _process_new_requests(self, scheduler_output: Any, metadata: Any) -> None:
        for new in scheduler_output.scheduled_new_reqs:
            self._trust_computed(new.req_id, new.num_computed_tokens)
        super()._process_new_requests(scheduler_output, metadata)

    def _process_cached_requests(self, scheduler_output: Any, metadata: Any) -> None:
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if request_id in cached.resumed_req_ids:
                self._trust_computed(request_id, computed)
        super()._process_cached_requests(scheduler_output, metadata)

    def _trust_computed(self, request_id: str, computed_tokens: int) -> None:
        """Cuts the tracker's hits back to what the scheduler has, after a load that failed part of the way.

        LMCache adds the hit to what is scheduled from then on; a hit that never arrived would make it store a block
        before it is filled. A full hit is computed less one token, whose logits are needed.
        """
        tracker = self.request_trackers[request_id]
        if computed_tokens >= max(tracker.num_lmcache_hit_tokens, tracker.num_vllm_hit_tokens) - 1:
            return
        tracker.num_lmcache_hit_tokens = min(tracker.num_lmcache_hit_tokens, computed_tokens)
        tracker.num_vllm_hit_tokens = min(tracker.num_vllm_hit_tokens, computed_tokens)
        # The server may have lost everything; it skips what it has.
        tracker.num_stored_tokens = 0

    # ---- worker half

    def transfers_in_flight(self) -> dict[str, int]:
        """Stores and loads that the server has not finished."""
        adapter = self.worker_adapter
        return {
            "stores": sum(not future.query() for future in adapter.store_futures.values()),
            "loads": sum(not future.query() for future, _ in adapter.retrieve_futures.values()),
        }

    def worker_lost_server(self) -> None:
        """The server is dead: transfers under way have failed; the next step reports them, even if a new server is
        there by then."""
        adapter = self.worker_adapter
        adapter._health_event.clear()
        failed: MessagingFuture[bool] = MessagingFuture()
        failed.set_result(False)
        for request_id, store in adapter.store_futures.items():
            if not store.query():
                adapter.store_futures[request_id] = failed
        for request_id, (load, block_ids) in adapter.retrieve_futures.items():
            if not load.query():
                adapter.retrieve_futures[request_id] = failed, block_ids
        adapter.req_client = _fresh_client(self._server_url(), adapter.req_client)
        if adapter._heartbeat is not None:
            _retire(adapter._heartbeat)
            adapter._heartbeat = None

    def worker_found_server(self) -> bool:
        """Registers the KV cache with a new server. False: it did not answer, the heartbeat tries again."""
        return self._register_once()

    def _register_once(self) -> bool:
        """Registers unless that is done. The engine's thread and the heartbeat's both come here after an outage; a
        second registration would put an unfinished transfer context under the engine's feet."""
        adapter = self.worker_adapter
        with self._registering:
            if adapter._health_event.is_set():
                return True
            if not self._register():
                return False
            adapter._health_event.set()
            return True

    def _server_url(self) -> str:
        config = self._vllm_config.kv_transfer_config
        host = config.get_from_extra_config("lmcache.mp.host", None)
        port = config.get_from_extra_config("lmcache.mp.port", None)
        return f"{host}:{port}"


def _fresh_client(url: str, client: Any) -> Any:
    """A new client in place of `client`, whose unsent messages are dropped with its socket."""
    queue = client._message_queue_client
    queue.socket.setsockopt(zmq.LINGER, 0)
    client.close()
    return RequestClientFactory.create(url, context=zmq.Context.instance())


def _retire(heartbeat: Any) -> None:
    """Ends a heartbeat without waiting for its ping, whose late failure must not count against the next server.

    The adapter starts another with its next transfer.
    """
    heartbeat._running = False
    heartbeat._stop_event.set()
    heartbeat._wake_event.set()


def _hide_llvmlite_from_kernel_scan() -> None:
    """LMCache imports numba, and with it llvmlite's `ffi.lib`, which answers every attribute with a C function, so
    `vars()` of it is no dictionary. vLLM's CPU platform looks into all objects of all modules for Triton kernels and
    fails on that one (vLLM 0.32.0, `_rebind_kernels`). It does so after this module was imported, since vLLM looks at
    the connector class while it checks its configuration."""
    rebind = kernel_dispatcher._rebind_kernels

    def rebind_without_llvmlite(overrides: Any) -> None:
        hidden = sys.modules.pop("llvmlite.binding.ffi", None)
        try:
            rebind(overrides)
        finally:
            if hidden is not None:
                sys.modules["llvmlite.binding.ffi"] = hidden

    kernel_dispatcher._rebind_kernels = rebind_without_llvmlite


_hide_llvmlite_from_kernel_scan()
