"""Engines and replicas for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from in_process import InProcessEngine, Replica, start_engine

from sync.startup import prove_engine
from sync.synthetic import write_random_checkpoint

Result = TypeVar("Result")


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessEngine]:
    """A tiny random Qwen3 (fused qkv and gate_up, untied) in a real engine, in this process."""
    checkpoint = tmp_path_factory.mktemp("engine") / "tiny"
    write_random_checkpoint(checkpoint, architecture="qwen3", hidden=64, layers=2, vocab=512, tied=False)
    yield from start_engine(checkpoint)


@pytest.fixture(scope="session")
def tied_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessEngine]:
    """A tiny random Llama with tied embeddings."""
    checkpoint = tmp_path_factory.mktemp("engine") / "tied"
    write_random_checkpoint(checkpoint, architecture="llama", hidden=64, layers=2, vocab=512, tied=True)
    yield from start_engine(checkpoint)


@pytest.fixture
def run_replica(tmp_path: Path) -> Callable[..., Any]:
    """Runs an async test body against a replica that starts at version 0, and restores its weights afterwards."""

    def run(engine: InProcessEngine, body: Callable[[Replica], Awaitable[Result]], store: str | None = None) -> Result:
        async def session() -> Result:
            proven = await prove_engine(engine, engine.checkpoint, 0, lambda *_: None)
            memory = engine.memory()
            original = {name: flat.clone() for name, flat in memory.flat.items()}
            replica = Replica(engine, proven, store or str(tmp_path / "store"))
            try:
                return await body(replica)
            finally:
                await replica.planner.stop()
                with torch.inference_mode():
                    for name, flat in memory.flat.items():
                        flat.copy_(original[name])

        return asyncio.run(session())

    return run
