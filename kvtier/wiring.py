"""How an engine is told about its host tier: vLLM's `kv_transfer_config`, as a plain dictionary. Imports no engine."""

from __future__ import annotations

from typing import Any

from kvtier.server import HANG_TIMEOUT_S, ServerAddress

# The connector gives a silent server up after this long, and then reuses blocks that it might still write: by then
# our supervisor must have killed it.
HEARTBEAT_S = 10.0
assert HEARTBEAT_S > HANG_TIMEOUT_S
# One blocking call of the connector: at start (chunk size, registration) and when it shuts down.
RPC_TIMEOUT_S = 15.0


def lmcache_transfer_config(address: ServerAddress) -> dict[str, Any]:
    """The connector of `kvtier.connector` for a server at `address`.

    Write-through: every full chunk is stored when it is computed, generated tokens too (agents send their output back
    as prompt). LMCache's lazy mode, which stores what GPU memory is about to evict, gives up stores whose blocks are
    taken within one step: in a pool that the load outgrows it lost half of them, and the hits with them
    (`python -m kvtier.bench --only stores`). A failed load is recomputed, not failed.
    """
    return {
        "kv_connector": "PolicyLMCacheConnector",
        "kv_connector_module_path": "kvtier.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": address.rpc_port,
            "lmcache.mp.mq_timeout": RPC_TIMEOUT_S,
            "lmcache.mp.heartbeat_interval": HEARTBEAT_S,
            # On `auto` a CPU worker picks the mode that the server does not offer.
            "lmcache.mp.mp_transfer_mode": "lmcache_driven",
            "lmcache.mp.save_decode_cache": True,
        },
    }


def native_transfer_config(capacity_bytes: int) -> dict[str, Any]:
    """The connector of `kvtier.native_connector`: the pool lives in the engine's workers, all ranks together."""
    return {
        "kv_connector": "PolicyOffloadingConnector",
        "kv_connector_module_path": "kvtier.native_connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "HostOffloadingSpec",
            "spec_module_path": "kvtier.native_connector",
            "cpu_bytes_to_use": capacity_bytes,
            "offload_prompt_only": False,
        },
    }
