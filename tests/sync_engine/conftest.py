"""Engines and replicas for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from in_process import InProcessEngine, run_on_replica, start_engine

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
    """Runs an async test body against a replica whose store is `tmp_path/store` (see `in_process.run_on_replica`)."""
    return lambda engine, body: run_on_replica(engine, body, tmp_path / "store")
