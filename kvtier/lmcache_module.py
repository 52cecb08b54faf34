"""What runs inside the LMCache server: counting its entries by namespace, and taking old namespaces out.

Loaded by `lmcache server --server-module` (see `kvtier.server`). Knows LMCache 0.5.6's storage manager; the server
itself offers a delete by key only, and nobody else knows the keys.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any

from lmcache.v1.multiprocess.ext_server_module import server_module_handler

from kvtier.namespace import namespace_of

USAGE_METHOD = "rollout.usage"
RECLAIM_METHOD = "rollout.reclaim"
# One batch holds the manager's lock for about a millisecond; serving goes on between batches.
_BATCH = 256
_PAUSE_S = 0.001
# Requests that straddled a change store into their old namespace later: those entries are found by looking again.
_SWEEP_INTERVAL_S = 5.0


def build_server_modules(context: Any) -> NamespaceModule:
    """LMCache's factory hook. `context`: its `ExtServerModuleBuildContext`."""
    return NamespaceModule(context.server_context)


class NamespaceModule:
    """An LMCache engine module. Payloads are JSON objects."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self._keep: frozenset[str] | None = None
        self._reclaimed = 0
        self._wake = threading.Event()
        self._closed = False
        self._sweeper = threading.Thread(target=self._sweep_forever, name="rollout-reclaim", daemon=True)
        self._sweeper.start()

    def report_status(self) -> dict[str, Any]:
        """Nothing of its own in `/status`: counting takes a pass over the index, so it is asked for by name."""
        return {}

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        self._sweeper.join()

    @server_module_handler(USAGE_METHOD)
    def usage(self, payload: bytes) -> bytes:
        """`{}` -> `{"namespaces": {name: {"entries": n, "bytes": n}}, "used_bytes", "capacity_bytes", "reclaimed"}`.

        Namespaces count readable entries; `reclaimed` is the number of entries taken out for being of another one.
        """
        entries: Counter[str] = Counter()
        size_bytes: Counter[str] = Counter()
        for manager in self._managers():
            for key, state in list(manager._objects.items()):
                namespace = namespace_of(key.cache_salt)
                entries[namespace] += 1
                size_bytes[namespace] += state.memory_obj.get_physical_size()
        namespaces = {name: {"entries": entries[name], "bytes": size_bytes[name]} for name in sorted(entries)}
        used_bytes, capacity_bytes = self.context.storage_manager.get_l1_usage()
        return json.dumps(
            {
                "namespaces": namespaces,
                "used_bytes": used_bytes,
                "capacity_bytes": capacity_bytes,
                "reclaimed": self._reclaimed,
            }
        ).encode()

    @server_module_handler(RECLAIM_METHOD)
    def reclaim(self, payload: bytes) -> bytes:
        """`{"keep": [namespace, ...]}` -> `{}`: from now on entries of all other namespaces are deleted.

        Returns at once; a thread deletes, now and as such entries appear. One that a load is reading is left for the
        next pass.
        """
        self._keep = frozenset(json.loads(payload)["keep"])
        self._wake.set()
        return b"{}"

    def _sweep_forever(self) -> None:
        while not self._closed:
            self._wake.wait(None if self._keep is None else _SWEEP_INTERVAL_S)
            self._wake.clear()
            if self._keep is not None and not self._closed:
                self._sweep(self._keep)

    def _sweep(self, keep: frozenset[str]) -> None:
        for manager in self._managers():
            for keys in _batches(list(manager._objects)):
                doomed = [key for key in keys if namespace_of(key.cache_salt) not in keep]
                if doomed:
                    deleted, _ = self.context.storage_manager.delete_l1_keys(doomed)
                    self._reclaimed += deleted
                time.sleep(_PAUSE_S)

    def _managers(self) -> list[Any]:
        return list(self.context.storage_manager._l1_managers_by_id.values())


def _batches(keys: list[Any]) -> list[list[Any]]:
    return [keys[start : start + _BATCH] for start in range(0, len(keys), _BATCH)]
