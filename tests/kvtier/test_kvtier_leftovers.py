"""What killed workers leave in /dev/shm goes, and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from kvtier.server import is_running, remove_shared_memory


def test_segments_of_dead_workers_are_removed_and_of_living_ones_kept() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    dead, living = (Path(f"/dev/shm/lmcache_kv_{pid}_test") for pid in (child.pid, os.getpid()))
    try:
        dead.write_bytes(b"kv")
        living.write_bytes(b"kv")
        assert remove_shared_memory({child.pid, os.getpid()}) == []
        child.send_signal(signal.SIGKILL)
        while is_running(child.pid):  # ends as a zombie: nobody has waited for it yet
            pass
        assert remove_shared_memory({os.getpid()}) == []
        assert remove_shared_memory({child.pid, os.getpid()}) == [dead.name]
        assert living.exists()
    finally:
        child.wait()
        dead.unlink(missing_ok=True)
        living.unlink(missing_ok=True)
