"""Utility methods that `runtime.plugin` adds to vLLM's engine core. The API process calls them by name.

The API process stamps each request with its namespace and sends it in order, so at a policy change every request of
the old version is in the scheduler already. What then happens to each is `kvtier.scheduler`'s.
"""

from __future__ import annotations

from typing import Any

from kvtier.namespace import OnUpdate
from kvtier.scheduler import computes_nothing, enter_namespace, forget_prefix, prompt_hashes


def rollout_enter_policy(core: Any, version: int, namespace: str, on_update: str) -> dict[str, Any]:
    """Makes `version` the weight version of all later tokens, and moves requests into `namespace`.

    Returns `kvtier.scheduler.Moved` as a dictionary. Raises RuntimeError unless paused.
    """
    report = enter_namespace(core, namespace, OnUpdate(on_update))
    core.set_weight_version(str(version))
    return report.to_json()


def rollout_computes_nothing(core: Any) -> bool:
    """Whether a pause that has not ended waits for KV transfers only."""
    return computes_nothing(core)


def rollout_kv_server(core: Any, is_up: bool) -> None:
    """Tells the scheduler's half of the connector that its server died, or that a new one is registered with."""
    connector = core.scheduler.connector
    if is_up:
        connector.scheduler_found_server()
    else:
        connector.scheduler_lost_server()


def rollout_forget_prefix(core: Any, token_ids: list[int], cache_salt: str) -> int:
    """Takes a prompt out of the GPU-side prefix cache; returns the number of blocks."""
    return forget_prefix(core, token_ids, cache_salt)


def rollout_stored_chunks(core: Any, token_ids: list[int], cache_salt: str) -> int:
    """How many of a prompt's full blocks the native tier could load."""
    stored: int = core.scheduler.connector.stored_chunks(prompt_hashes(core, token_ids, cache_salt))
    return stored


def rollout_native_usage(core: Any) -> dict[str, int]:
    """Entries of the native tier."""
    usage: dict[str, int] = core.scheduler.connector.usage()
    return usage


UTILITIES = (
    rollout_enter_policy,
    rollout_computes_nothing,
    rollout_kv_server,
    rollout_forget_prefix,
    rollout_stored_chunks,
    rollout_native_usage,
)
