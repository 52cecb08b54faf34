"""How large the host KV tier may be: what is really free, less what others will still need. No engine, no server.

`free_memory` reads the machine (cgroup v1 and v2 limits, MemAvailable); the rest is arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MIN_TIER_BYTES = 64 << 20
# What an LMCache server takes beside its pool: interpreter, torch, index. Measured 450 MB on 0.5.6.
SERVER_OVERHEAD_BYTES = 512 << 20
RESERVE_FRACTION = 0.10
MIN_RESERVE_BYTES = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# Kernels write about this for "no limit" in cgroup v1.
_NO_LIMIT_BYTES = 1 << 60


class TierTooSmall(ValueError):
    """There is no room for a tier; the message says what was found."""


@dataclass(frozen=True)
class FreeMemory:
    """Bytes that can still be taken. `limit` says what bounds it: the machine or a cgroup."""

    free_bytes: int
    limit: str


@dataclass(frozen=True)
class TierSize:
    """The pool's capacity and how it came about, all in bytes."""

    capacity_bytes: int
    free: FreeMemory
    reserve_bytes: int
    staging_bytes: int
    share: float

    def sentence(self, dropped_bytes: int) -> str:
        """What the log says."""
        share = "" if self.share == 1 else f" x {self.share:.3g} of the node's GPUs"
        return (
            f"model {_human(dropped_bytes)} dropped from host memory; KV tier {_human(self.capacity_bytes)} "
            f"({_human(self.free.free_bytes)} free by {self.free.limit}, less {_human(self.reserve_bytes)} reserve, "
            f"{_human(self.staging_bytes)} staging and {_human(SERVER_OVERHEAD_BYTES)} for the server{share})"
        )


def tier_size(free: FreeMemory, staging_bytes: int, share: float = 1.0, reserve_bytes: int | None = None) -> TierSize:
    """Sizes the tier of one replica.

    `staging_bytes`: what deltas need while they are staged. `share`: this replica's part of the node, GPUs used over
    GPUs present. The reserve is a tenth of what is free, at least 1 GiB, unless given.

    Raises TierTooSmall below `MIN_TIER_BYTES`.
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share of the node is above 0 and at most 1, found {share}")
    if reserve_bytes is None:
        reserve_bytes = max(MIN_RESERVE_BYTES, int(free.free_bytes * RESERVE_FRACTION))
    usable = int((free.free_bytes - reserve_bytes) * share) - staging_bytes - SERVER_OVERHEAD_BYTES
    if usable < MIN_TIER_BYTES:
        raise TierTooSmall(
            f"no room for a KV tier: {_human(free.free_bytes)} free by {free.limit}, less {_human(reserve_bytes)} "
            f"reserve, {_human(staging_bytes)} staging, {_human(SERVER_OVERHEAD_BYTES)} for the server leaves "
            f"{_human(max(0, usable))}, at least {_human(MIN_TIER_BYTES)} is needed; start with --kv-tier off or "
            "give the process more memory"
        )
    return TierSize(usable, free, reserve_bytes, staging_bytes, share)


def free_memory(root: Path = Path("/")) -> FreeMemory:
    """What this process may still take: the least of MemAvailable and the room under each cgroup limit.

    File pages in a cgroup count as free, since the kernel drops them under pressure. `root` is for tests.
    """
    found = [FreeMemory(_meminfo(root / "proc/meminfo")["MemAvailable"], "the machine")]
    found += _cgroup_v2(root) + _cgroup_v1(root)
    return min(found, key=lambda free: free.free_bytes)


def _meminfo(path: Path) -> dict[str, int]:
    pattern = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
    return {name: int(kilobytes) << 10 for name, kilobytes in pattern.findall(path.read_text())}


def _cgroup_v2(root: Path) -> list[FreeMemory]:
    group = _own_group(root, lambda controllers, index: index == "0" and not controllers)
    base = root / "sys/fs/cgroup"
    if group is None or not (base / "cgroup.controllers").exists():
        return []
    return [
        FreeMemory(_room(directory, "memory.max", "memory.current", "inactive_file"), "its cgroup")
        for directory in _with_parents(base, group)
        if _limit(directory / "memory.max") is not None
    ]


def _cgroup_v1(root: Path) -> list[FreeMemory]:
    group = _own_group(root, lambda controllers, index: "memory" in controllers.split(","))
    base = root / "sys/fs/cgroup/memory"
    if group is None or not base.exists():
        return []
    return [
        FreeMemory(_room(directory, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), "cgroup")
        for directory in _with_parents(base, group)
        if _limit(directory / "memory.limit_in_bytes") is not None
    ]


def _own_group(root: Path, wanted: Callable[[str, str], bool]) -> str | None:
    path = root / "proc/self/cgroup"
    if not path.exists():
        return None
    for line in path.read_text().splitlines():
        index, controllers, group = line.split(":", 2)
        if wanted(controllers, index):
            return group.strip("/")
    return None


def _with_parents(base: Path, group: str) -> list[Path]:
    """The group's directory and all above it; inside a container only the root of the mount may exist."""
    parts = group.split("/") if group else []
    directories = [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [directory for directory in directories if directory.is_dir()]


def _limit(path: Path) -> int | None:
    if not path.exists():
        return None
    text = path.read_text().strip()
    if text == "max" or int(text) >= _NO_LIMIT_BYTES:
        return None
    return int(text)


def _room(directory: Path, limit: str, usage: str, reclaimable: str) -> int:
    limit_bytes = _limit(directory / limit)
    assert limit_bytes is not None
    used = int((directory / usage).read_text())
    stat = directory / "memory.stat"
    fields = dict(line.split() for line in stat.read_text().splitlines()) if stat.exists() else {}
    return max(0, limit_bytes - used + int(fields.get(reclaimable, 0)))


def parse_size(text: str) -> int:
    """Bytes from `12.5G`, `512M`, `4GiB`: powers of 1024. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"expected a size like 12G or 512M, found {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _human(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"
