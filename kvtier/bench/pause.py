"""The pause of an update against the number of cached blocks: the whole of it, as a server reports it, and the part
inside the engine core."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from kvtier.bench.engine import BenchEngine
from kvtier.bench.processes import in_process, say
from kvtier.bench.sizes import PAUSE_BLOCK_TOKENS, PAUSE_MODEL, Arm, Sizes, make_tokens

_PROMPT_BLOCKS = 127
_PROMPT_TOKENS = _PROMPT_BLOCKS * PAUSE_BLOCK_TOKENS
_PROMPTS_A_REQUEST = 8
_VOCABULARY = 512
_DENSITY = 0.01
_WAITING = 32


def run_pause(sizes: Sizes) -> list[dict[str, Any]]:
    """`rollout-serve` with a tier that holds everything, over real prompts and real updates.

    Each row: blocks cached in GPU memory and entries of the tier when the first of `updates` begins, and what
    `/policy` then says of the pauses, in milliseconds.
    """
    from safetensors.torch import load_file

    from sync.bench.replica import Replica
    from sync.publisher import Publisher
    from sync.synthetic import perturb, write_random_checkpoint

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kv-bench-") as directory:
        checkpoint, store = Path(directory) / "model", Path(directory) / "store"
        write_random_checkpoint(checkpoint, max_position=2 * _PROMPT_TOKENS, **PAUSE_MODEL)
        publisher = Publisher(str(store))
        publisher.publish_anchor(checkpoint)
        weights = load_file(checkpoint / "model.safetensors")
        for version in range(1, 2 + len(sizes.cached_blocks) * sizes.updates):
            weights = perturb(weights, _DENSITY, seed=version)
            publisher.publish_delta(weights)
        pool = max(sizes.cached_blocks) + 4 * _PROMPT_BLOCKS * _PROMPTS_A_REQUEST
        arguments = [
            *("--policy-store", str(store), "--no-follow", "--kv-tier", "1G"),
            *("--max-model-len", str(_PROMPT_TOKENS + PAUSE_BLOCK_TOKENS), "--block-size", str(PAUSE_BLOCK_TOKENS)),
            *("--num-gpu-blocks-override", str(pool), "--max-num-batched-tokens", "8192"),
        ]
        with Replica(checkpoint, *arguments) as replica:
            version = _update(replica, 1)["version"]
            cached = 0
            for target in sizes.cached_blocks:
                cached += _fill(replica, target - cached, f"{target}")
                entries = replica.request("GET", "/kv")["tier"]["entries"]
                reports = [_update(replica, version := version + 1)["timings_ms"] for _ in range(sizes.updates)]
                rows.append({"cached_blocks": cached, "tier_entries": entries, **_summary(reports)})
                say(f"pause {rows[-1]}")
    return rows


def _fill(replica: Any, blocks: int, seed: str) -> int:
    """Prompts of full blocks, all different; returns how many blocks they filled."""
    filled = 0
    while filled < blocks:
        prompts = [
            make_tokens(_PROMPT_TOKENS, f"{seed}-{filled}-{position}", _VOCABULARY)
            for position in range(_PROMPTS_A_REQUEST)
        ]
        replica.request("POST", "/v1/completions", {"prompt": prompts, "max_tokens": 1})
        filled += _PROMPTS_A_REQUEST * _PROMPT_BLOCKS
    return filled


def _update(replica: Any, version: int) -> dict[str, Any]:
    report: dict[str, Any] = replica.request("POST", "/policy/sync", {"version": version})["sync"]
    return report


def _summary(reports: list[dict[str, float]]) -> dict[str, float]:
    """The first update meets all entries in its own namespace; they are being reclaimed during the others."""
    pauses = [report["pause_ms"] for report in reports]
    phases = ("drain_ms", "commit_ms", "publish_ms")
    return {
        "pause_ms": statistics.median(pauses),
        "first_pause_ms": pauses[0],
        "max_pause_ms": max(pauses),
        **{phase: statistics.median(report[phase] for report in reports) for phase in phases},
    }


def run_move(checkpoint: str, sizes: Sizes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = in_process(measure_move, checkpoint, sizes)
    return rows


def measure_move(checkpoint: str, sizes: Sizes) -> list[dict[str, Any]]:
    """Time inside the engine core to move to a new namespace, with requests waiting.

    Blocks are put into the prefix cache's index directly (their KV does not matter here).
    """
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
    from vllm.v1.core.sched.interface import PauseState

    from kvtier.namespace import Namespace, OnUpdate
    from kvtier.scheduler import enter_namespace

    engine = BenchEngine(checkpoint, Arm(64, None, "off"), 1024)
    core, rows = engine.core, []
    index = core.scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block
    block = core.scheduler.kv_cache_manager.block_pool.blocks[1]
    core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    for waiting in range(_WAITING):
        engine.add(make_tokens(900, f"pause-{waiting}"), Namespace(0).name, 1)
    entries = 0
    for target in sizes.cached_blocks:
        for entry in range(entries, target):
            index.insert(make_block_hash_with_group_id(entry.to_bytes(32, "little"), 0), block)
        entries = target
        times = []
        for move in range(50):
            start = time.perf_counter()
            enter_namespace(core, Namespace(move, target + move).name, OnUpdate.KEEP)
            times.append((time.perf_counter() - start) * 1e3)
        rows.append({"cached_blocks": target, "waiting_requests": _WAITING, "move_ms": statistics.median(times)})
        say(f"move {rows[-1]}")
    return rows
