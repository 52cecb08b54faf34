"""Adler-32, corrections, encoding, mapping, gather and scatter on their own; and the memory of a decode."""

from __future__ import annotations

import mmap
import subprocess
import sys
import zlib
from typing import Any

import numpy as np

import native
from native.bench.fixtures import changed_masks, compress, make_content
from native.bench.measure import median_seconds


def measure_checksums(rounds: int) -> dict[str, float]:
    data = np.random.default_rng(0).integers(0, 256, 128 << 20, np.uint8)
    count = 1_000_000
    result = {}
    seconds = median_seconds({"native": lambda: native.adler32(data), "zlib": lambda: zlib.adler32(data.data)}, rounds)
    result["adler32_gb_s"] = data.nbytes / seconds["native"] / 1e9
    result["adler32_over_zlib"] = seconds["zlib"] / seconds["native"]
    for size in (1, 2, 4):
        positions = np.sort(np.random.default_rng(1).integers(0, 1 << 30, count)).astype(np.uint32)
        old, new = data[: count * size].view(f"u{size}"), data[-count * size :].view(f"u{size}")

        def correct(positions: Any = positions, old: Any = old, new: Any = new, size: int = size) -> int:
            return native.adler32_correction(positions, old, new, (1 << 30) * size)

        seconds = median_seconds({"correction": correct}, rounds)
        result[f"correction_ns_a_byte_{size}"] = seconds["correction"] / count / size * 1e9
    return result


def measure_encoding(rounds: int) -> dict[str, float]:
    pool = changed_masks("fp8", 0.0009)
    content = make_content(pool, 0.0009, 128 << 20, clustered=False, seed=3)
    parent = np.random.default_rng(2).integers(0, 256, content.nbytes, np.uint8)
    new = parent ^ content
    out = np.empty_like(parent)
    work: dict[str, Any] = {"xor_count_adler_gb_s": lambda: native.xor_count_adler(parent, new, out, 1)}
    for level in (1, 3, 5, 9):
        name = f"encode_{'default' if level == 5 else f'level_{level}'}_gb_s"
        work[name] = lambda level=level: native.encode_delta(parent, new, 1, level=level)
    return {name: new.nbytes / value / 1e9 for name, value in median_seconds(work, rounds).items()}


def measure_memory_access(rounds: int) -> dict[str, float]:
    """Nanoseconds an element for 2-byte elements at 0.09% of 1 GiB, in ascending order."""
    result = {}
    elements = 1 << 29
    count = int(elements * 0.0009)
    offsets = np.sort(np.random.default_rng(4).integers(0, elements, count)).astype(np.uint32)
    masks = np.ones(count, np.uint16)
    for pages in ("small", "huge"):
        # Private memory: the kernel gives shared mappings no huge pages by default.
        with mmap.mmap(-1, elements * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapping:
            if pages == "huge":
                native.prefer_huge_pages(mapping)
            memory = np.frombuffer(mapping, np.uint16)
            memory[:] = 7
            work = {
                "gather": lambda memory=memory: native.gather(memory, offsets),
                "gather_xor": lambda memory=memory: native.gather_xor(memory, offsets, masks),
                "scatter": lambda memory=memory: native.scatter(memory, offsets, masks),
                "numpy_take": lambda memory=memory: memory[offsets],
            }
            for name, value in median_seconds(work, rounds).items():
                result[f"{name}_{pages}_pages_ns"] = value / count * 1e9
            del memory, work
    work_map = {
        "map_positions_ns": lambda: native.map_positions(
            offsets, 0, 0, [1 << 15, 1 << 7, 1 << 7], [1 << 14, 1 << 7, 1], [1 << 14, 1, 1 << 7]
        ),
        "counting_sort_ns": lambda: native.counting_sort(offsets >> np.uint32(20), 512),
    }
    result.update({name: value / count * 1e9 for name, value in median_seconds(work_map, rounds).items()})
    return result


PEAK_MEMORY = """
import sys, native
payload = sys.stdin.buffer.read()
def status(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))
native.decode_sparse(b"", 0, 1)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
decoded = native.decode_sparse(payload, int(sys.argv[1]), int(sys.argv[2]))
out = decoded.positions.nbytes + decoded.masks.nbytes
print(status("VmHWM") * 1024 - before * 1024 - out)
"""


def measure_peak_memory() -> dict[str, int]:
    """Bytes beyond input and output at the peak of one decode, in a process of its own."""
    result = {}
    for kind, density, level in (("fp8", 0.0009, 3), ("bf16", 0.0009, None), ("fp8", 0.01, 3), ("fp8", 0.1, 3)):
        pool = changed_masks(kind, density)
        content = make_content(pool, density, 64 << 20, clustered=False, seed=5)
        program = subprocess.run(
            [sys.executable, "-c", PEAK_MEMORY, str(content.nbytes), str(content.itemsize)],
            input=compress(content, level),
            capture_output=True,
            check=True,
        )
        name = f"{kind} {density * 100:g}% {'default' if level is None else f'level {level}'}"
        result[name] = int(program.stdout)
    return result
