"""A delta the size of GLM-5.3's: 716.56 GiB of logical XOR, decoded for real on all cores.

The published figure is 17.30 s on an 8-GPU server. Payloads of distinct content are made ahead and decoded again and
again until the logical size is reached; results are dropped batch by batch.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from rich.progress import Progress

from native import DecodeJob, decode_many
from native.bench.fixtures import changed_masks, compress, make_content

LOGICAL_BYTES = int(716.56 * (1 << 30))
PUBLISHED_SECONDS = 17.30
DENSITY = 0.0009
TEMPLATE_BYTES = 64 << 20
TEMPLATES = 48
BATCH_JOBS = 4 * TEMPLATES

RUNS: dict[str, tuple[str, int | None]] = {
    "fp8_level3": ("fp8", 3),
    "fp8_default": ("fp8", None),
    "bf16_level3": ("bf16", 3),
}


class ScaleRun(NamedTuple):
    """seconds: wall clock; cpu_seconds: of all threads, which on a busy machine says more."""

    seconds: float
    cpu_seconds: float
    logical_gib: float
    compressed_gib: float
    changed_elements: int


def make_jobs(kind: str, level: int | None) -> list[tuple[DecodeJob, int]]:
    """Jobs with their payloads' lengths."""
    pool = changed_masks(kind, DENSITY)
    jobs = []
    for seed in range(TEMPLATES):
        content = make_content(pool, DENSITY, TEMPLATE_BYTES, clustered=False, seed=seed)
        payload = compress(content, level)
        job = DecodeJob(f"template {seed}", payload, content.nbytes, content.itemsize)
        jobs.append((job, len(payload)))
    return jobs


def run_scale(name: str, progress: Progress, *, share: float = 1.0) -> ScaleRun:
    """Decodes `share` of the logical size; times are scaled to all of it."""
    templates = make_jobs(*RUNS[name])
    wanted = int(LOGICAL_BYTES * share)
    task = progress.add_task(f"GLM-5.3 scale, {name}", total=wanted)
    decoded = compressed = changed = 0
    seconds = cpu_seconds = 0.0
    while decoded < wanted:
        count = min(BATCH_JOBS, -(-(wanted - decoded) // TEMPLATE_BYTES))
        batch = [templates[i % TEMPLATES] for i in range(count)]
        start, cpu_start = time.perf_counter(), time.process_time()
        results = decode_many([job for job, _ in batch], niceness=0)
        seconds += time.perf_counter() - start
        cpu_seconds += time.process_time() - cpu_start
        decoded += sum(job.size_bytes for job, _ in batch)
        compressed += sum(length for _, length in batch)
        changed += sum(int(result.xor.positions.size) for result in results)
        progress.update(task, completed=decoded)
    gib = 1 << 30
    whole = LOGICAL_BYTES / decoded
    return ScaleRun(seconds * whole, cpu_seconds * whole, decoded / gib, compressed / gib, changed)
