"""Sizes from files that kernels would write, and the arithmetic on top."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtier.sizing import (
    MIN_TIER_BYTES,
    SERVER_OVERHEAD_BYTES,
    FreeMemory,
    TierTooSmall,
    free_memory,
    parse_size,
    tier_size,
)

GIB = 1 << 30


def machine(root: Path, available_gib: int, group: str) -> None:
    write(root / "proc/meminfo", f"MemTotal: {64 << 20} kB\nMemAvailable:   {available_gib << 20} kB\n")
    write(root / "proc/self/cgroup", group)


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}")


def test_without_cgroups_the_machine_counts(tmp_path: Path) -> None:
    machine(tmp_path, 20, "0::/\n")
    assert free_memory(tmp_path) == FreeMemory(20 * GIB, "the machine")


def test_cgroup_v2_limit_of_a_parent_binds(tmp_path: Path) -> None:
    machine(tmp_path, 20, "0::/pod/container\n")
    base = tmp_path / "sys/fs/cgroup"
    write(base / "cgroup.controllers", "memory")
    write(base / "pod/memory.max", 10 * GIB)
    write(base / "pod/memory.current", 6 * GIB)
    write(base / "pod/memory.stat", f"anon {4 * GIB}\ninactive_file {1 * GIB}\n")
    write(base / "pod/container/memory.max", "max")
    write(base / "pod/container/memory.current", 6 * GIB)
    free = free_memory(tmp_path)
    assert free.free_bytes == 5 * GIB
    assert "cgroup" in free.limit


def test_cgroup_v1_limit_binds_and_its_no_limit_does_not(tmp_path: Path) -> None:
    machine(tmp_path, 20, "5:cpu:/x\n3:memory:/job\n0::/\n")
    job = tmp_path / "sys/fs/cgroup/memory/job"
    write(job.parent / "memory.limit_in_bytes", 9223372036854771712)
    write(job.parent / "memory.usage_in_bytes", 50 * GIB)
    write(job / "memory.limit_in_bytes", 8 * GIB)
    write(job / "memory.usage_in_bytes", 3 * GIB)
    write(job / "memory.stat", f"total_inactive_file {2 * GIB}\n")
    assert free_memory(tmp_path).free_bytes == 7 * GIB


def test_this_machine_can_be_read() -> None:
    assert 0 < free_memory().free_bytes < 1 << 50


def test_size_is_what_nobody_else_needs() -> None:
    size = tier_size(FreeMemory(20 * GIB, "the machine"), staging_bytes=GIB, share=0.5)
    assert size.reserve_bytes == 2 * GIB
    assert size.capacity_bytes == 9 * GIB - GIB - SERVER_OVERHEAD_BYTES
    sentence = size.sentence(269_000_000)
    assert "model 269 MB dropped from host memory; KV tier 8.1 GB" in sentence
    assert "0.5 of the node's GPUs" in sentence


def test_no_room_is_said_with_its_numbers() -> None:
    with pytest.raises(TierTooSmall, match=r"1\.6 GB free by its cgroup.*--kv-tier off"):
        tier_size(FreeMemory(int(1.5 * GIB), "its cgroup"), staging_bytes=0)
    room = 1 * GIB + SERVER_OVERHEAD_BYTES + MIN_TIER_BYTES
    assert tier_size(FreeMemory(room, "the machine"), 0).capacity_bytes == MIN_TIER_BYTES


@pytest.mark.parametrize(("text", "size"), [("12G", 12 * GIB), ("1.5GiB", 3 * GIB // 2), ("512m", GIB // 2), ("7", 7)])
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "12 parsecs", "1e3"])
def test_bad_sizes_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(text)
