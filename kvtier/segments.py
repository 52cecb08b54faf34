"""KV segments in /dev/shm: their names, and removing those whose owner is dead.

LMCache's connector moves a CPU worker's KV cache into POSIX shared memory, and a killed worker cannot unlink it. So
that a leftover can be told from anybody else's segment, ours are named after this program, the worker's PID namespace
and its pid (`kvtier.connector` sets the prefix). /dev/shm may be shared with containers whose pids mean nothing here:
their segments have another namespace's number and are left alone.
"""

from __future__ import annotations

import re
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def segment_prefix() -> str:
    """What the names of this PID namespace's segments begin with; the pid follows, then `_`."""
    return f"rollout_kv_{Path('/proc/self/ns/pid').stat().st_ino}_"


def remove_dead_segments() -> list[str]:
    """Removes segments of ours whose worker is gone; returns their names."""
    named = re.compile(re.escape(segment_prefix()) + r"(\d+)_.+")
    removed = []
    for segment in SHARED_MEMORY.iterdir():
        match = named.fullmatch(segment.name)
        if match is not None and not is_running(int(match[1])):
            segment.unlink(missing_ok=True)
            removed.append(segment.name)
    return sorted(removed)


def is_running(pid: int) -> bool:
    """False for a process that is gone, or has ended and only waits for its parent to look."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
