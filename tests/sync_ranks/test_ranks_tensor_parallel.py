"""Two real ranks: each stages only what it owns, and together they hold every byte of the new version."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcessEngine, Replica
from independent_trainer import read_checkpoint, train_step, write_anchor, write_delta

from sync.startup import prove_engine
from sync.synthetic import write_random_checkpoint

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(400)]


def test_two_ranks_commit_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ROLLOUT_SERVE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1" if (os.cpu_count() or 1) > 1 else "0|0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }.items():
        monkeypatch.setenv(name, value)
    from vllm import LLM

    checkpoint, store = tmp_path / "model", tmp_path / "store"
    write_random_checkpoint(checkpoint, architecture="qwen3", hidden=64, layers=2, vocab=512, tied=False)
    llm = LLM(
        str(checkpoint),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        worker_extension_cls="sync.worker.PolicyWorkerExtension",
    )
    try:
        asyncio.run(_sync_and_prove(InProcessEngine(llm, checkpoint), checkpoint, store))
    finally:
        llm.llm_engine.engine_core.shutdown()


async def _sync_and_prove(engine: Any, checkpoint: Path, store: Path) -> None:
    proven = await prove_engine(engine, checkpoint, 0, lambda *_: None)
    assert [layout.rank for layout in proven.layouts] == [0, 1]
    split = proven.layouts[0].boxes_of["model.layers.0.self_attn.o_proj.weight"]
    assert sum(box.elements for box in split) * 2 == proven.layouts[0].tensor[split[0].tensor].elements
    replica = Replica(engine, proven, str(store))
    weights, _ = read_checkpoint(checkpoint)
    try:
        for version, checksum in enumerate(["adler32", "blake3"], start=1):
            new = train_step(weights, seed=version)
            write_delta(store, version, version - 1, weights, new, checksum=checksum)
            await replica.coordinator.sync(version)
            weights = new
        dense = train_step(weights, seed=9)
        write_anchor(store, 3, checkpoint, dense)
        await replica.coordinator.sync(3)
    finally:
        await replica.planner.stop()
    # The proof that start-up gives, now against the version that the deltas led to.
    target = store / "weight_v000003"
    shutil.copy(checkpoint / "config.json", target)
    again = await prove_engine(engine, target, 3, lambda *_: None)
    assert again.ledger.adler32 == replica.coordinator.ledger.adler32
