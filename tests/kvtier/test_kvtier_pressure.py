"""Memory of the LMCache server while far more is stored than fits."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest
from conftest import CHUNK, ServerThread, SteppedEngine, prompt, salt, start_llm

from kvtier.namespace import Namespace
from kvtier.sizing import SERVER_OVERHEAD_BYTES
from kvtier.wiring import lmcache_transfer_config
from sync.synthetic import write_random_checkpoint

CAPACITY_BYTES = 256 << 20
PRESSURE_BYTES = 4 * CAPACITY_BYTES
# The figure asked for is ten minutes; set KV_PRESSURE_SECONDS=600 for it.
SECONDS = float(os.environ.get("KV_PRESSURE_SECONDS", "180"))
RECOVERY_S = 60.0
pytestmark = [pytest.mark.engine, pytest.mark.endurance, pytest.mark.timeout(SECONDS + 240)]


def private_bytes(process: psutil.Process) -> int:
    """Without what it shares: it maps the engine's KV memory, page by page as it reads and writes there."""
    memory = process.memory_info()
    return memory.rss - memory.shared


def test_memory_stays_under_its_size_within_five_percent(tmp_path: Path) -> None:
    checkpoint = tmp_path / "wide"
    # 4 MiB of KV a block: pressure comes from bytes, not from compute.
    write_random_checkpoint(
        checkpoint, hidden=512, layers=8, heads=16, kv_heads=16, intermediate=64, vocab=512, tokenizer=False
    )
    host = ServerThread(CAPACITY_BYTES, tmp_path)
    try:
        assert host.server.pid is not None
        server = psutil.Process(host.server.pid)
        engine = SteppedEngine(start_llm(checkpoint, lmcache_transfer_config(host.server.address)), host)
        own = salt(Namespace(0).name)
        stored_chunks, settled_bytes, peak_bytes = 0, 0, 0
        deadline, entry_bytes = time.monotonic() + SECONDS, 0
        # A slow machine gets the time that the pressure takes it.
        while time.monotonic() < deadline or stored_chunks * entry_bytes < PRESSURE_BYTES:
            engine.run(prompt(12, seed=1000 + stored_chunks), own)
            stored_chunks += 12
            usage = host.usage()
            entry_bytes = usage["entry_bytes"]
            assert usage["used_bytes"] <= CAPACITY_BYTES
            peak_bytes = max(peak_bytes, private_bytes(server))
            half_stored = stored_chunks * entry_bytes > PRESSURE_BYTES / 2
            if not settled_bytes and half_stored and time.monotonic() > deadline - SECONDS / 2:
                settled_bytes = peak_bytes
        print(f"stored {stored_chunks} chunks, {settled_bytes / 1e6:.0f} MB half-way, peak {peak_bytes / 1e6:.0f} MB")
        # The pool, and beside it no more than sizing sets aside; once settled it does not grow.
        assert peak_bytes <= 1.05 * CAPACITY_BYTES + SERVER_OVERHEAD_BYTES
        assert peak_bytes - settled_bytes <= 0.05 * CAPACITY_BYTES
        # And it still works: once eviction has caught up, what is stored comes back whole.
        deadline, seed = time.monotonic() + RECOVERY_S, 1
        while True:
            engine.run(prompt(12, seed=seed), own)
            engine.core.reset_prefix_cache()
            if engine.run(prompt(12, seed=seed), own).num_cached_tokens == 12 * CHUNK:
                break
            assert time.monotonic() < deadline, "what is stored does not come back after the pressure"
            seed += 1
    finally:
        host.stop()
