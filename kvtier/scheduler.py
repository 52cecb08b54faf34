"""A policy change inside vLLM's scheduler: which requests move, go on, start over or end. Knows vLLM.

Runs in the engine core between steps, while the scheduler is paused. The guarantee: no request starts on KV of another
namespace. Requests that have produced nothing yet start in the new one: their hashes are computed again, and KV that
was loaded or is being loaded for them is given back. Requests that have started keep theirs (`keep`), so that what
they still store stays out of reach of new requests.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from kvtier.namespace import OnUpdate, is_policy_namespace, move_salt, namespace_of


@dataclass
class Moved:
    """What a change did. `moved`: ids of requests that start under the new version."""

    moved: list[str] = field(default_factory=list)
    preempted: int = 0
    aborted: int = 0
    cancelled_loads: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def enter_namespace(core: Any, namespace: str, on_update: OnUpdate) -> Moved:
    """Moves the engine core's requests into `namespace`. Raises RuntimeError unless the scheduler is paused."""
    scheduler = core.scheduler
    if not core.is_scheduler_paused():
        raise RuntimeError("a namespace can only be entered while the scheduler is paused")
    report = Moved()
    if on_update is OnUpdate.ABORT:
        _abort_started(core, report)
    if on_update is OnUpdate.RECOMPUTE:
        _preempt_running(scheduler, report)
    for request in list(scheduler.requests.values()):
        if request.is_finished() or request.cache_salt is None:
            continue
        started = has_started(request)
        if not started:
            report.moved.append(request.request_id)
        if started and on_update is not OnUpdate.RECOMPUTE:
            continue
        current = namespace_of(request.cache_salt)
        if current != namespace and is_policy_namespace(current):
            _move(scheduler, request, namespace, report)
    return report


def has_started(request: Any) -> bool:
    """Whether the request has been computed with, so that tokens or KV of its own exist.

    One whose KV was loaded, or is being loaded, but which never ran, has not.
    """
    return bool(request.num_output_tokens or request.num_preemptions or request.status is RequestStatus.RUNNING)


def computes_nothing(core: Any) -> bool:
    """Whether no step with tokens is in flight: what keeps a paused engine busy then is KV transfers only."""
    return all(request.num_in_flight_tokens == 0 for request in core.scheduler.requests.values())


def _move(scheduler: Any, request: Any, namespace: str, report: Moved) -> None:
    request.cache_salt = move_salt(request.cache_salt, namespace)
    request.block_hashes.clear()
    request.update_block_hashes()
    if scheduler.connector is not None:
        scheduler.connector.move_request(request)
    if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
        # vLLM's way with a failed load: once the transfer has ended, the blocks go back without being cached, and the
        # request is scheduled from its first token.
        request.num_computed_tokens = 0
        scheduler.failed_recving_kv_req_ids.add(request.request_id)
        report.cancelled_loads += 1
    elif request.num_computed_tokens:
        # Loaded, but no step has run since.
        scheduler.kv_cache_manager.free(request)
        request.num_computed_tokens = 0
        report.cancelled_loads += 1


def _preempt_running(scheduler: Any, report: Moved) -> None:
    """As vLLM's `reset_prefix_cache(reset_running_requests=True)`, without clearing anything."""
    now = time.monotonic()
    while scheduler.running:
        scheduler._preempt_request(scheduler.running.pop(), now, drop_stale_output=True)
        report.preempted += 1
    scheduler.prev_step_scheduled_req_ids.clear()


def _abort_started(core: Any, report: Moved) -> None:
    started = [request.request_id for request in core.scheduler.requests.values() if has_started(request)]
    aborted = core.scheduler.finish_requests(started, RequestStatus.FINISHED_ABORTED) if started else []
    core._send_abort_outputs(aborted)
    report.aborted = len(aborted)


def prompt_hashes(core: Any, token_ids: list[int], cache_salt: str) -> list[bytes]:
    """vLLM's hashes of a prompt's full blocks."""
    request = Request(
        "rollout-hashes",
        token_ids,
        SamplingParams(),
        None,
        cache_salt=cache_salt,
        block_hasher=core.request_block_hasher,
    )
    hashes: list[bytes] = request.block_hashes
    return hashes


def forget_prefix(core: Any, token_ids: list[int], cache_salt: str) -> int:
    """Takes a prompt's blocks out of the GPU-side prefix cache, so that only a host tier can still hit it.

    Returns how many blocks that were. Only blocks of exactly this salt are concerned.
    """
    manager = core.scheduler.kv_cache_manager
    groups = range(len(manager.kv_cache_config.kv_cache_groups))
    found: set[int] = set()
    for block_hash in prompt_hashes(core, token_ids, cache_salt):
        for group in groups:
            blocks = manager.block_pool.get_cached_block(block_hash, [group])
            found.update(block.block_id for block in blocks or ())
    manager.evict_blocks(found)
    return len(found)
