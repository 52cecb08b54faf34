"""Start-up: trace the layout, prove that engine memory equals the checkpoint, record the ledger.

Until this succeeded nothing may be deleted and no delta applied. Works through the same engine port as the
coordinator; the work runs on the workers' stage threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sync.coordinator import Engine
from sync.layout import LayoutError, LayoutMap
from sync.ledger import Ledger
from sync.mapping import Router

logger = logging.getLogger("rollout.sync")
PROGRESS_INTERVAL_S = 0.05

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ProvenEngine:
    """What start-up established: the ranks' maps and a ledger that answers for every served byte."""

    layouts: tuple[LayoutMap, ...]
    ledger: Ledger
    trace_ms: float
    verify_ms: float


async def prove_engine(engine: Engine, checkpoint: Path, version: int, progress: Progress) -> ProvenEngine:
    """Traces, compares every element with the checkpoint directory, and records the ledger at `version`.

    `progress(phase, done, total)` is called as work goes on. Raises LayoutError, naming each tensor and the reason,
    where engine memory is not the checkpoint byte for byte: sync must then be refused and the disk copy kept.
    """
    start = time.perf_counter()
    traced = await _run(engine, "trace", {"checkpoint": str(checkpoint)}, progress)
    layouts = tuple(LayoutMap.from_ipc(rank["layout"]) for rank in traced)
    router = Router(layouts)
    router.check_coverage()
    verified_from = time.perf_counter()
    arguments = {"checkpoint": str(checkpoint), "world_size": len(layouts)}
    proofs = await _run(engine, "verify", arguments, progress)
    _require_proof(layouts, proofs)
    adler32 = {name: value for proof in proofs for name, value in proof["adler32"].items()}
    tensors = tuple(tensor for tensor in layouts[0].tensors if tensor.name in router.served)
    skipped = sorted(layouts[0].tensor.keys() - router.served)
    if skipped:
        logger.info("%d checkpoint tensors are not used by the engine: %s", len(skipped), ", ".join(skipped[:10]))
    ledger = Ledger(version, tensors, {tensor.name: adler32[tensor.name] for tensor in tensors})
    end = time.perf_counter()
    # The ledger lists the served tensors; so must the maps, which carry every tensor of the checkpoint until here.
    layouts = tuple(replace(layout, tensors=tensors) for layout in layouts)
    return ProvenEngine(layouts, ledger, (verified_from - start) * 1e3, (end - verified_from) * 1e3)


def _require_proof(layouts: tuple[LayoutMap, ...], proofs: list[dict[str, Any]]) -> None:
    found = [mismatch for proof in proofs for mismatch in proof["mismatches"]]
    if found:
        lines = [
            f"{mismatch['tensor']} (in {mismatch['destination']}: {mismatch['differing_elements']} elements differ, "
            f"first at {mismatch['first_position']})"
            for mismatch in found[:20]
        ]
        raise LayoutError(
            f"{len(found)} tensors in engine memory do not equal the checkpoint, so deltas cannot be applied in "
            f"place (rearranged or requantised on load): {'; '.join(lines)}"
        )
    for layout, proof in zip(layouts, proofs, strict=True):
        expected = sum(box.elements for box in layout.boxes)
        if proof["compared_elements"] != expected:
            raise LayoutError(
                f"rank {layout.rank} compared {proof['compared_elements']} elements of {expected}: the checkpoint "
                "directory lacks tensors that were traced"
            )


async def _run(engine: Engine, task: str, arguments: dict[str, Any], progress: Progress) -> list[dict[str, Any]]:
    """Runs a task on every rank's stage thread. Raises LayoutError with the rank's own words where it fails."""
    await engine.collective("policy_start", task, arguments)
    while True:
        statuses = await engine.collective("policy_status")
        done, total = (min(status["progress"][part] for status in statuses) for part in (0, 1))
        progress(task, done, total)
        if all(status["state"] != "running" for status in statuses):
            break
        await asyncio.sleep(PROGRESS_INTERVAL_S)
    for rank, status in enumerate(statuses):
        if status["state"] != "done":
            raise LayoutError(f"rank {rank} could not {task}: {status['error']}")
    return [status["result"] for status in statuses]
