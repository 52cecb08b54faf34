"""What runs inside vLLM's engine core at a policy change. Knows vLLM's scheduler; called while it is paused.

The API process stamps each request with its namespace and sends it in order, so at a policy change every request of
the old version is in the scheduler already. Those that have not started move to the new namespace here: they will be
computed by the new weights. Those that have started keep theirs, so that what they still store stays out of reach of
new requests.
"""

from __future__ import annotations

from typing import Any

from kvtier.namespace import Namespace, move_salt


def rollout_enter_policy(core: Any, version: int) -> list[str]:
    """Makes `version` the weight version of all later tokens. Returns the ids of the requests that moved with it.

    Added to vLLM's `EngineCore` as a utility method by `runtime.plugin`. Raises RuntimeError unless paused.
    """
    if not core.is_scheduler_paused():
        raise RuntimeError("rollout_enter_policy needs a paused scheduler")
    moved = []
    for request in core.scheduler.requests.values():
        if has_started(request) or request.cache_salt is None:
            continue
        request.cache_salt = move_salt(request.cache_salt, Namespace(version).name)
        request.block_hashes.clear()
        request.update_block_hashes()
        moved.append(request.request_id)
    core.set_weight_version(str(version))
    return moved


def has_started(request: Any) -> bool:
    """Whether any of the request's KV was computed (it may be preempted meanwhile)."""
    return bool(request.num_computed_tokens or request.num_output_tokens or request.num_preemptions)
