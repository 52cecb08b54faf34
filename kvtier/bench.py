"""Figures of the KV tier, in one run on one machine: `python -m kvtier.bench [--json]`.

A random model that costs something to prefill, a small GPU-side pool, a real LMCache server:
- time to first token of a prompt that is cold, in GPU memory, in the host tier;
- tokens a second and hit rate of shared-prefix, multi-turn sessions against concurrency, tier on and off, where their
  prefixes outgrow the pool and fit the tier, and where everything fits the pool (what the tier costs);
- the pause's engine-side part (move to a new namespace) against the number of cached blocks.
Each engine runs in a process of its own. Progress goes to stderr, the report to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CHUNK = 128
VOCABULARY = 4096
MODEL: dict[str, Any] = {
    "hidden": 1024,
    "layers": 12,
    "heads": 16,
    "kv_heads": 8,
    "intermediate": 3072,
    "vocab": VOCABULARY,
}


@dataclass(frozen=True)
class Sizes:
    """What to run. Tokens, blocks of 128 tokens, bytes."""

    prompt_tokens: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    repeats: int = 3
    concurrency: tuple[int, ...] = (1, 4, 8)
    sessions: int = 8
    turns: int = 4
    prefix_tokens: int = 4096
    turn_tokens: int = 128
    output_tokens: int = 16
    small_pool_blocks: int = 136
    tier_bytes: int = 4 << 30


QUICK = Sizes((1024, 4096), 1, (4,), 4, 3, 2048, 128, 8, 40, 1 << 30)


@dataclass(frozen=True)
class Arm:
    """One engine process: its pool, and the tier's transfer configuration or None."""

    pool_blocks: int
    transfer: dict[str, Any] | None
    name: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvtier.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the report as JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="a few minutes: fewer lengths, one concurrency")
    parser.add_argument("--only", choices=["ttft", "sessions", "pause"], help="one part")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    report = run(sizes, options.only)
    print(json.dumps(report, indent=2) if options.json else _table(report))
    return 0


def run(sizes: Sizes, only: str | None = None) -> dict[str, Any]:
    """Runs all parts, or one; returns the report."""
    from sync.synthetic import write_random_checkpoint

    report: dict[str, Any] = {"machine": _machine(), "model": MODEL, "sizes": asdict(sizes)}
    with tempfile.TemporaryDirectory(prefix="kv-bench-") as directory:
        checkpoint = Path(directory) / "model"
        write_random_checkpoint(
            checkpoint, architecture="qwen3", tied=True, tokenizer=False, max_position=32768, **MODEL
        )
        if only in (None, "ttft"):
            report["ttft"] = _with_tier(sizes, functools.partial(_ttft, checkpoint, sizes))
        if only in (None, "sessions"):
            report["sessions"] = _sessions_all(checkpoint, sizes)
        if only in (None, "pause"):
            report["pause"] = _in_process(measure_pause, str(checkpoint))
    return report


# ---- parts


def _ttft(checkpoint: Path, sizes: Sizes, transfer: dict[str, Any]) -> Any:
    pool = 2 * max(sizes.prompt_tokens) // CHUNK + 8
    return _in_process(measure_ttft, str(checkpoint), sizes, Arm(pool, transfer, "lmcache"))


def _sessions_all(checkpoint: Path, sizes: Sizes) -> dict[str, Any]:
    """Every arm meets the same requests; each (arm, concurrency) gets a namespace of its own, so starts cold."""
    session_tokens = sizes.prefix_tokens + sizes.turns * (sizes.turn_tokens + sizes.output_tokens)
    large = sizes.sessions * (session_tokens // CHUNK + 2) + 8
    found: dict[str, Any] = {}
    for pool_name, pool in (("outgrown", sizes.small_pool_blocks), ("fits", large)):
        off = _in_process(measure_sessions, str(checkpoint), sizes, Arm(pool, None, "off"))
        on = _with_tier(sizes, functools.partial(_sessions, checkpoint, sizes, pool))
        found[pool_name] = {"pool_blocks": pool, "off": off, "on": on}
    return found


def _sessions(checkpoint: Path, sizes: Sizes, pool: int, transfer: dict[str, Any]) -> Any:
    return _in_process(measure_sessions, str(checkpoint), sizes, Arm(pool, transfer, "lmcache"))


def measure_ttft(checkpoint: str, sizes: Sizes, arm: Arm) -> list[dict[str, Any]]:
    """Medians in milliseconds, with the tokens that were cached: one token is generated after the prompt."""
    engine = BenchEngine(checkpoint, arm, max(sizes.prompt_tokens) + CHUNK)
    rows = []
    for tokens in sizes.prompt_tokens:
        times: dict[str, list[float]] = {"cold": [], "gpu": [], "host": []}
        cached: dict[str, int] = {}
        for repeat in range(sizes.repeats):
            prompt = make_tokens(tokens + 1, f"ttft-{tokens}-{repeat}")
            for kind in ("cold", "gpu", "host"):
                if kind == "host":
                    engine.forget(prompt, "ttft")
                milliseconds, cached[kind] = engine.first_token_ms(prompt, "ttft")
                times[kind].append(milliseconds)
        row = {f"{kind}_ms": statistics.median(values) for kind, values in times.items()}
        rows.append(
            {"prompt_tokens": tokens, **row, "host_over_cold": row["host_ms"] / row["cold_ms"], "cached": cached}
        )
        _say(f"ttft {rows[-1]}")
    return rows


def measure_sessions(checkpoint: str, sizes: Sizes, arm: Arm) -> list[dict[str, Any]]:
    """Closed loop: `concurrency` sessions at a time, each turn sends all that went before, and its answer."""
    engine = BenchEngine(checkpoint, arm, sizes.prefix_tokens + sizes.turns * (sizes.turn_tokens + 64) + CHUNK)
    rows = []
    for concurrency in sizes.concurrency:
        rows.append({"concurrency": concurrency, **engine.run_sessions(sizes, concurrency)})
        _say(f"sessions {arm.name} pool={arm.pool_blocks} {rows[-1]}")
    return rows


def measure_pause(checkpoint: str) -> list[dict[str, Any]]:
    """Time inside the engine core to move to a new namespace, with requests waiting, against cached blocks.

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
    for waiting in range(32):
        engine.add(make_tokens(900, f"pause-{waiting}"), Namespace(0).name, 1)
    entries = 0
    for target in (0, 1_000, 100_000):
        for entry in range(entries, target):
            block_hash = entry.to_bytes(32, "little")
            index.insert(make_block_hash_with_group_id(block_hash, 0), block)
        entries = target
        times = []
        for move in range(50):
            start = time.perf_counter()
            enter_namespace(core, Namespace(move, target + move).name, OnUpdate.KEEP)
            times.append((time.perf_counter() - start) * 1e3)
        rows.append({"cached_blocks": target, "waiting_requests": 32, "move_ms": statistics.median(times)})
        _say(f"pause {rows[-1]}")
    return rows


# ---- the engine


class BenchEngine:
    """An in-process engine core, driven step by step."""

    def __init__(self, checkpoint: str, arm: Arm, max_tokens: int) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        from vllm import LLM

        self.llm = LLM(
            checkpoint,
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=max_tokens,
            max_num_batched_tokens=2048,
            num_gpu_blocks_override=arm.pool_blocks,
            kv_transfer_config=arm.transfer,
        )
        self.engine = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self._count = 0
        self.first_token_ms(make_tokens(300, "warm-up"), "warm-up")

    def add(self, tokens: list[int], namespace: str, max_tokens: int) -> str:
        from vllm import SamplingParams

        self._count += 1
        parameters = SamplingParams(temperature=0, max_tokens=max_tokens, min_tokens=max_tokens, detokenize=False)
        prompt = {"prompt_token_ids": tokens, "cache_salt": namespace}
        self.engine.add_request(str(self._count), prompt, parameters)
        return str(self._count)

    def first_token_ms(self, tokens: list[int], namespace: str) -> tuple[float, int]:
        """Milliseconds to the first token of a lone request, and how many prompt tokens were cached."""
        start = time.perf_counter()
        name = self.add(tokens, namespace, 1)
        finished = None
        while finished is None:
            finished = next((output for output in self.engine.step() if output.request_id == name), None)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        while self.core.scheduler.has_requests():  # its stores
            self.engine.step()
        return elapsed_ms, finished.num_cached_tokens or 0

    def forget(self, tokens: list[int], namespace: str) -> None:
        from kvtier.scheduler import forget_prefix

        forget_prefix(self.core, tokens, namespace)

    def run_sessions(self, sizes: Sizes, concurrency: int) -> dict[str, Any]:
        namespace = f"sessions-{concurrency}"
        histories = {
            session: make_tokens(sizes.prefix_tokens, f"session-{session}") for session in range(sizes.sessions)
        }
        # The first turns are cold for everybody: they fill the tier and are not counted. Then turn by turn over all
        # sessions: between two turns of one, all others have been in the pool.
        sessions = range(sizes.sessions)
        self._run_turns(sizes, concurrency, namespace, histories, [(session, 0) for session in sessions])
        turns = [(session, turn) for turn in range(1, sizes.turns) for session in sessions]
        counts = self._run_turns(sizes, concurrency, namespace, histories, turns)
        return {
            "output_tokens_per_s": counts["generated"] / counts["seconds"],
            "seconds": counts["seconds"],
            "hit_rate": counts["cached"] / counts["asked"],
        }

    def _run_turns(
        self,
        sizes: Sizes,
        concurrency: int,
        namespace: str,
        histories: dict[int, list[int]],
        todo: list[tuple[int, int]],
    ) -> dict[str, float]:
        counts = {"asked": 0.0, "cached": 0.0, "generated": 0.0}
        running: dict[str, int] = {}
        start = time.perf_counter()
        while todo or running:
            while todo and len(running) < concurrency:
                session, turn = todo.pop(0)
                histories[session] += make_tokens(sizes.turn_tokens, f"turn-{session}-{turn}")
                running[self.add(histories[session], namespace, sizes.output_tokens)] = session
            for output in self.engine.step():
                if output.finished:
                    session = running.pop(output.request_id)
                    counts["asked"] += len(output.prompt_token_ids)
                    counts["cached"] += output.num_cached_tokens or 0
                    counts["generated"] += len(output.outputs[0].token_ids)
                    histories[session] += output.outputs[0].token_ids
        counts["seconds"] = time.perf_counter() - start
        while self.core.scheduler.has_requests():
            self.engine.step()
        return counts


# ---- around it


def _with_tier(sizes: Sizes, body: Callable[[dict[str, Any]], Any]) -> Any:
    """Runs `body` with a server of its own, from this process."""
    from kvtier.server import LmcacheServer
    from kvtier.wiring import lmcache_transfer_config

    with tempfile.TemporaryDirectory(prefix="kv-bench-") as directory:
        server = LmcacheServer(sizes.tier_bytes, CHUNK, Path(directory))
        with asyncio.Runner() as runner:
            runner.run(server.start())
            try:
                return body(lmcache_transfer_config(server.address))
            finally:
                runner.run(server.stop())


def _in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `function` in a fresh process: an engine cannot be taken down completely."""
    from kvtier.server import remove_shared_memory

    executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    try:
        pid = executor.submit(os.getpid).result()
        return executor.submit(function, *arguments).result()
    finally:
        executor.shutdown()
        # The connector's segment: a child of multiprocessing ends without its exit handlers.
        remove_shared_memory({pid})


def make_tokens(count: int, seed: str) -> list[int]:
    return random.Random(seed).choices(range(3, VOCABULARY), k=count)


def _machine() -> dict[str, Any]:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _table(report: dict[str, Any]) -> str:
    return "\n".join(_lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    machine = report["machine"]
    yield f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_at_start']:.1f}"
    if "ttft" in report:
        yield "prompt    cold ms     gpu ms    host ms  host/cold"
        for row in report["ttft"]:
            yield (
                f"{row['prompt_tokens']:6d} {row['cold_ms']:10.0f} {row['gpu_ms']:10.0f} {row['host_ms']:10.0f} "
                f"{row['host_over_cold']:10.3f}"
            )
    for pool, arms in report.get("sessions", {}).items():
        yield f"sessions, pool of {arms['pool_blocks']} blocks ({pool})"
        for off, on in zip(arms["off"], arms["on"], strict=True):
            gain = on["output_tokens_per_s"] / off["output_tokens_per_s"]
            yield (
                f"  {off['concurrency']:3d} at a time: off {off['output_tokens_per_s']:.2f} tok/s, hit rate "
                f"{off['hit_rate']:.1%}; on {on['output_tokens_per_s']:.2f} tok/s, {on['hit_rate']:.1%}; x{gain:.2f}"
            )
    for row in report.get("pause", ()):
        yield f"{row['cached_blocks']:7d} cached blocks: move to a new namespace {row['move_ms']:.3f} ms"


if __name__ == "__main__":
    sys.exit(main())
