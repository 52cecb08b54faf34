"""The worker's half of the KV tier, mixed into vLLM's worker. All results fit msgpack. Knows vLLM."""

from __future__ import annotations

import os
from typing import Any


class KvTierWorkerExtension:
    """Called through `collective_rpc`, so between steps: each call takes milliseconds."""

    def kv_transfers(self) -> dict[str, int]:
        """`{"stores": n, "loads": n}` that the tier has not finished on this rank."""
        connector = _connector()
        return connector.transfers_in_flight() if connector is not None else {"stores": 0, "loads": 0}

    def kv_process(self) -> int:
        """This worker's process id."""
        return os.getpid()

    def kv_server_lost(self) -> None:
        """The LMCache server is dead. Raises RuntimeError without a connector."""
        _connector_or_raise().worker_lost_server()

    def kv_server_found(self) -> bool:
        """A new LMCache server answers: register with it. False if it did not answer."""
        return bool(_connector_or_raise().worker_found_server())


def _connector() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    return get_kv_transfer_group() if has_kv_transfer_group() else None


def _connector_or_raise() -> Any:
    connector = _connector()
    if connector is None:
        raise RuntimeError("this worker was started without a KV tier")
    return connector
