"""When KV is written to the host tier, and what that costs: every chunk as it is computed (write-through), or only what
GPU memory is about to evict (LMCache's lazy mode, its write-back); generated tokens too, or prompts only.

Two loads: the sessions, where a chunk that was not stored is a later miss; and streams that decode and fit the pool,
where stores are pure cost.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from functools import partial
from typing import Any

from kvtier.bench.engine import BenchEngine
from kvtier.bench.processes import alternate, in_process, say, tier
from kvtier.bench.sessions import session_limit
from kvtier.bench.sizes import CHUNK, Arm, Sizes, make_tokens

NAMESPACE = "stores"
_DECODE_PROMPT_TOKENS = CHUNK
# Connector settings over the tier's own (`kvtier.wiring`), which write through, generated tokens too.
MODES: dict[str, dict[str, Any]] = {
    "write-through": {},
    "write-through, prompts only": {"lmcache.mp.save_decode_cache": False},
    "write-back on eviction": {"lmcache.mp.lazy_offload": True},
}


def run_stores(checkpoint: str, sizes: Sizes) -> dict[str, Any]:
    """`{"sessions": [row...], "decode": [row...]}`: one row a mode; sessions in the small pool and in the large one."""
    found: dict[str, Any] = {"sessions": []}
    for pool_name, pool in (("outgrown", sizes.small_pool_blocks), ("fits", sizes.large_pool_blocks)):
        for mode, settings in MODES.items():
            with tier(sizes.tier_bytes) as host:
                arm = Arm(pool, _with(host.transfer, settings), mode)
                row = in_process(measure_session_stores, checkpoint, sizes, arm)
                row |= _kept(host.usage(), row["full_chunks"], row["lazy_counters"])
            found["sessions"].append({"mode": mode, "pool": pool_name, **row})
            say(f"stores {found['sessions'][-1]}")
    return found | {"decode": _decode_rows(checkpoint, sizes)}


def _decode_rows(checkpoint: str, sizes: Sizes) -> list[dict[str, Any]]:
    """Without a tier, then the modes. `loss`: of output tokens a second, medians over the rounds."""
    pool = sizes.decode_streams * ((_DECODE_PROMPT_TOKENS + sizes.decode_tokens) // CHUNK + 2) + 8

    def without_tier() -> tuple[float, int]:
        return in_process(measure_decode, checkpoint, sizes, Arm(pool, None, "off")), 0

    def with_mode(mode: str) -> tuple[float, int]:
        with tier(sizes.tier_bytes) as host:
            transfer = _with(host.transfer, MODES[mode])
            return in_process(measure_decode, checkpoint, sizes, Arm(pool, transfer, mode)), _entries(host.usage())

    arms = {"off": without_tier} | {mode: partial(with_mode, mode) for mode in MODES}
    found = alternate(arms, sizes.rounds)
    rates = {name: statistics.median(rate for rate, _ in results) for name, results in found.items()}
    return [
        {
            "mode": name,
            "output_tokens_per_s": rate,
            "stored_chunks": found[name][0][1],
            "loss": 1 - rate / rates["off"],
        }
        for name, rate in rates.items()
    ]


def measure_session_stores(checkpoint: str, sizes: Sizes, arm: Arm) -> dict[str, Any]:
    """Figures of the sessions, the chunks that could have been stored, and the lazy mode's own count."""
    engine = BenchEngine(checkpoint, arm, session_limit(sizes))
    figures, histories = engine.run_sessions(sizes, sizes.store_concurrency, NAMESPACE)
    # The last token's KV is never computed.
    full_chunks = sum((len(history) - 1) // CHUNK for history in histories)
    return figures | {"full_chunks": full_chunks, "lazy_counters": _lazy_counters(engine)}


def measure_decode(checkpoint: str, sizes: Sizes, arm: Arm) -> float:
    """Output tokens a second of streams with a short prompt, stores included."""
    engine = BenchEngine(checkpoint, arm, _DECODE_PROMPT_TOKENS + sizes.decode_tokens + CHUNK)
    start = time.perf_counter()
    for stream in range(sizes.decode_streams):
        engine.add(make_tokens(_DECODE_PROMPT_TOKENS, f"decode-{stream}"), NAMESPACE, sizes.decode_tokens)
    engine.drain()
    rate = sizes.decode_streams * sizes.decode_tokens / (time.perf_counter() - start)
    say(f"stores, decoding, {arm.name}: {rate:.1f} tokens/s")
    return rate


def _with(transfer: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    extra = transfer["kv_connector_extra_config"] | settings
    return transfer | {"kv_connector_extra_config": extra}


def _lazy_counters(engine: BenchEngine) -> dict[str, int] | None:
    """LMCache's ledger of deferred stores: admitted == pending + emitted + dropped ones. None without that mode."""
    connector = engine.core.scheduler.connector
    if connector is None or not connector.lazy_offload:
        return None
    counters: dict[str, int] = asdict(connector._lazy_offload_manager._policy._counters)
    return counters


def _kept(usage: dict[str, Any], full_chunks: int, lazy: dict[str, int] | None) -> dict[str, Any]:
    """`lost_stores`: deferred store operations that were given up, mostly since their blocks had gone by then."""
    lost = 0 if lazy is None else sum(count for name, count in lazy.items() if name.startswith("dropped_"))
    return {"stored_chunks": _entries(usage), "stored_share": _entries(usage) / full_chunks, "lost_stores": lost}


def _entries(usage: dict[str, Any]) -> int:
    return int(usage["namespaces"].get(NAMESPACE, {"entries": 0})["entries"])
