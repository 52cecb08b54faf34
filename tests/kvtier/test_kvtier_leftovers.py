"""What killed workers leave in /dev/shm goes, and nothing else does."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import CHUNK

from kvtier.lmcache_tier import LmcacheTier
from kvtier.segments import is_running, remove_dead_segments, segment_prefix
from kvtier.sizing import MIN_TIER_BYTES
from kvtier.types import Backend, TierRequest

SHARED_MEMORY = Path("/dev/shm")


def test_segments_of_dead_workers_are_removed_and_all_others_kept() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    prefix = segment_prefix()
    dead = SHARED_MEMORY / f"{prefix}{child.pid}_test"
    others = [
        SHARED_MEMORY / f"{prefix}{os.getpid()}_test",
        # Not this program's, though its owner is dead; another PID namespace's, where that pid may live; no pid at all.
        SHARED_MEMORY / f"lmcache_kv_{child.pid}_test",
        SHARED_MEMORY / f"rollout_kv_1_{child.pid}_test",
        SHARED_MEMORY / f"{prefix}x{child.pid}_test",
    ]
    try:
        for segment in (dead, *others):
            segment.write_bytes(b"kv")
        assert dead.name not in remove_dead_segments()
        child.send_signal(signal.SIGKILL)
        while is_running(child.pid):  # ends as a zombie: nobody has waited for it yet
            time.sleep(0.001)
        assert dead.name in remove_dead_segments()
        assert not dead.exists() and all(segment.exists() for segment in others)
    finally:
        child.wait()
        for segment in (dead, *others):
            segment.unlink(missing_ok=True)


@pytest.mark.engine
@pytest.mark.slow
def test_a_killed_replica_leaves_segments_until_the_next_start(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A real engine registers its KV memory with a real server, and its whole group is killed."""
    go = multiprocessing.get_context("spawn").Process(target=serve_until_killed, args=(tiny_checkpoint, tmp_path))
    go.start()
    assert go.pid is not None
    ready = tmp_path / "ready"
    deadline = time.monotonic() + 120
    while not ready.exists():
        assert go.is_alive() and time.monotonic() < deadline
        time.sleep(0.05)
    left = [path.name for path in SHARED_MEMORY.iterdir() if path.name.startswith(f"{segment_prefix()}{go.pid}_")]
    os.killpg(go.pid, signal.SIGKILL)
    go.join()
    assert left

    async def start_another() -> None:
        tier = LmcacheTier(TierRequest(Backend.LMCACHE, MIN_TIER_BYTES), CHUNK)
        await tier.start()
        await tier.close()

    asyncio.run(start_another())
    assert not any((SHARED_MEMORY / name).exists() for name in left)


def serve_until_killed(checkpoint: Path, directory: Path) -> None:
    """A group of its own: an engine and its LMCache server."""
    os.setpgid(0, 0)
    from conftest import ServerThread, start_llm

    from kvtier.wiring import lmcache_transfer_config

    host = ServerThread(MIN_TIER_BYTES, directory)
    llm = start_llm(checkpoint, lmcache_transfer_config(host.server.address))
    (directory / "ready").touch()
    signal.pause()
    del llm
