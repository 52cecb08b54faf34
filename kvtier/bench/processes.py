"""A process for each engine, and a LMCache server for each arm with a tier."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kvtier.bench.sizes import CHUNK
from kvtier.segments import remove_dead_segments
from kvtier.server import LmcacheServer
from kvtier.wiring import lmcache_transfer_config

Result = TypeVar("Result")


class Tier(NamedTuple):
    """A running server: what vLLM is told of it, and what it holds (`kvtier.lmcache_module`)."""

    transfer: dict[str, Any]
    usage: Callable[[], dict[str, Any]]


@contextmanager
def tier(size_bytes: int) -> Iterator[Tier]:
    """Starts a server of its own from this process; empty, so every arm starts cold. Raises ServerFailed."""
    with tempfile.TemporaryDirectory(prefix="kv-bench-") as directory, asyncio.Runner() as runner:
        server = LmcacheServer(size_bytes, CHUNK, Path(directory))
        runner.run(server.start())
        try:
            yield Tier(lmcache_transfer_config(server.address), lambda: runner.run(server.call("usage")))
        finally:
            runner.run(server.stop())


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `function` in a fresh process: an engine cannot be taken down completely."""
    executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    try:
        return executor.submit(function, *arguments).result()
    finally:
        executor.shutdown()
        # The connector's segment: a child of multiprocessing ends without its exit handlers.
        remove_dead_segments()


def alternate(arms: dict[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """Each arm's results. Every second round runs the arms backwards: a machine that slows down is no arm's loss."""
    results: dict[str, list[Result]] = {name: [] for name in arms}
    for number in range(rounds):
        for name in list(arms) if number % 2 == 0 else reversed(arms):
            results[name].append(arms[name]())
    return results


def say(line: str) -> None:
    """Progress, beside the report."""
    print(line, file=sys.stderr, flush=True)
