"""What runs inside the LMCache server: counting its entries by namespace, and taking old namespaces out.

Loaded by `lmcache server --server-module` (see `kvtier.server`). Knows LMCache 0.5.6's storage manager; the server
itself offers a delete by key only, and nobody else knows the keys. Answers on a Unix socket of its own, one JSON
object a connection, so that the API process needs nothing of LMCache in memory:

    {"call": "ping"}                        -> {}, once the server's request loop has answered too
    {"call": "usage"}                       -> namespaces with entries and bytes, the pool, what was reclaimed
    {"call": "reclaim", "keep": [name...]}  -> {}; entries of all other namespaces go, now and as they appear
    {"call": "metrics"}                     -> {"text": the server's metrics in Prometheus' format}
"""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from kvtier.namespace import namespace_of

# One batch holds the manager's lock for about a millisecond; serving goes on between batches.
_BATCH = 256
_PAUSE_S = 0.001
# Requests that straddled a change store into their old namespace later: those entries are found by looking again.
_SWEEP_INTERVAL_S = 5.0
_LOOP_TIMEOUT_S = 5.0
_MAX_REQUEST_BYTES = 1 << 20


def build_server_modules(context: Any) -> NamespaceModule:
    """LMCache's factory hook. `context`: its `ExtServerModuleBuildContext`; config: `{"socket": path}`."""
    config = context.mp_config
    return NamespaceModule(context.server_context, context.config["socket"], f"tcp://{config.host}:{config.port}")


class NamespaceModule:
    """An LMCache engine module."""

    def __init__(self, context: Any, socket_path: str, rpc_url: str) -> None:
        self.context = context
        self._rpc_url = rpc_url
        self._rpc: Any = None
        self._keep: frozenset[str] | None = None
        self._reclaimed = 0
        self._entry_bytes = 0
        self._wake = threading.Event()
        self._closed = False
        self._sweeper = threading.Thread(target=self._sweep_forever, name="rollout-reclaim", daemon=True)
        self._sweeper.start()
        self._listener = _Listener(socket_path, self)
        threading.Thread(target=self._listener.serve_forever, name="rollout-control", daemon=True).start()

    def report_status(self) -> dict[str, Any]:
        """Nothing of its own in `/status`: counting takes a pass over the index, so it is asked for by name."""
        return {}

    def close(self) -> None:
        self._listener.shutdown()
        self._closed = True
        self._wake.set()
        self._sweeper.join()
        if self._rpc is not None:
            self._rpc.close()

    def ping(self) -> dict[str, Any]:
        """Asks the request loop what the connector's heartbeat asks. Raises TimeoutError."""
        if self._rpc is None:
            from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

            self._rpc = RequestClientFactory.create(self._rpc_url)
        self._rpc.ping(None).result(_LOOP_TIMEOUT_S)
        return {}

    def usage(self) -> dict[str, Any]:
        """`{"namespaces": {name: {"entries": n, "bytes": n}}, "used_bytes", "capacity_bytes", "reclaimed", ...}`.

        Namespaces count readable entries, `staged_entries` those still being written. `reclaimed`: entries taken out
        for being of another namespace. `entry_bytes`: the size of an entry seen last, 0 before the first.
        """
        entries: Counter[str] = Counter()
        size_bytes: Counter[str] = Counter()
        for manager in self._managers():
            for key, state in list(manager._objects.items()):
                namespace = namespace_of(key.cache_salt)
                self._entry_bytes = state.memory_obj.get_physical_size()
                entries[namespace] += 1
                size_bytes[namespace] += self._entry_bytes
        used_bytes, capacity_bytes = self.context.storage_manager.get_l1_usage()
        return {
            "namespaces": {name: {"entries": entries[name], "bytes": size_bytes[name]} for name in sorted(entries)},
            "used_bytes": used_bytes,
            "capacity_bytes": capacity_bytes,
            "reclaimed": self._reclaimed,
            "entry_bytes": self._entry_bytes,
            "staged_entries": sum(len(manager._staging) for manager in self._managers()),
        }

    def reclaim(self, keep: list[str]) -> dict[str, Any]:
        """From now on entries of namespaces not in `keep` are deleted, by a thread. What a load is reading is left
        for the next pass."""
        self._keep = frozenset(keep)
        self._wake.set()
        return {}

    def metrics(self) -> dict[str, Any]:
        from prometheus_client import generate_latest

        return {"text": generate_latest().decode()}

    def _sweep_forever(self) -> None:
        while not self._closed:
            self._wake.wait(None if self._keep is None else _SWEEP_INTERVAL_S)
            self._wake.clear()
            if self._keep is not None and not self._closed:
                self._sweep(self._keep)

    def _sweep(self, keep: frozenset[str]) -> None:
        for manager in self._managers():
            keys = list(manager._objects)
            for start in range(0, len(keys), _BATCH):
                doomed = [key for key in keys[start : start + _BATCH] if namespace_of(key.cache_salt) not in keep]
                if doomed:
                    deleted, _ = self.context.storage_manager.delete_l1_keys(doomed)
                    self._reclaimed += deleted
                time.sleep(_PAUSE_S)

    def _managers(self) -> list[Any]:
        return list(self.context.storage_manager._l1_managers_by_id.values())


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, module: NamespaceModule) -> None:
        self.calls: dict[str, Callable[..., dict[str, Any]]] = {
            "ping": module.ping,
            "usage": module.usage,
            "reclaim": module.reclaim,
            "metrics": module.metrics,
        }
        super().__init__(path, _Handler)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Listener)
        try:
            request = json.loads(self.rfile.readline(_MAX_REQUEST_BYTES))
            answer = self.server.calls[request.pop("call")](**request)
        except Exception as error:
            # The caller gets it: a server must answer whatever it is asked.
            answer = {"error": f"{type(error).__name__}: {error}"}
        self.wfile.write(json.dumps(answer).encode() + b"\n")
