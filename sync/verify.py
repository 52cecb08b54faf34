"""Start-up proof: every element of every checkpoint tensor equals engine memory, through the layout map.

Runs on a worker's stage thread before serving. What does not compare equal is named with its first difference and
the number of differing elements; sync is then refused and the disk copy stays.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import torch

from sync.layout import Box
from sync.memory import EngineMemory, as_integers, source_block

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Mismatch:
    """One tensor that is not in engine memory as published."""

    tensor: str
    destination: str
    differing_elements: int
    first_position: int


@dataclass(frozen=True)
class RankProof:
    """What one rank found. `adler32`: by tensor, of this rank's share of the tensors (the ledger's rows)."""

    rank: int
    compared_elements: int
    mismatches: tuple[Mismatch, ...]
    adler32: dict[str, int]

    def to_message(self) -> dict[str, object]:
        """Plain types only: this crosses `collective_rpc`."""
        return asdict(self) | {"mismatches": [asdict(mismatch) for mismatch in self.mismatches]}


def verify_rank(
    memory: EngineMemory, tensors: Iterable[tuple[str, torch.Tensor]], world_size: int, progress: Progress
) -> RankProof:
    """Compares `tensors` (names and CPU tensors as published, any order) with engine memory.

    Each rank compares all its boxes, and computes the Adler-32 of every `world_size`-th tensor, so that all ranks
    together read each checksum once. `progress(done_bytes, total_bytes)` is called after each tensor.
    """
    layout = memory.layout
    total_bytes = sum(tensor.size_bytes for tensor in layout.tensors)
    mismatches: list[Mismatch] = []
    adler32: dict[str, int] = {}
    compared = done_bytes = 0
    for index, (name, tensor) in enumerate(tensors):
        flat = as_integers(tensor.contiguous().reshape(-1))
        for box in layout.boxes_of.get(name, ()):
            mismatch = _compare(memory, flat, box)
            if mismatch is not None:
                mismatches.append(mismatch)
            compared += box.elements
        if index % world_size == layout.rank:
            adler32[name] = zlib.adler32(flat.view(torch.uint8).numpy())
        done_bytes += layout.tensor[name].size_bytes
        progress(done_bytes, total_bytes)
    return RankProof(layout.rank, compared, tuple(mismatches), adler32)


def _compare(memory: EngineMemory, flat: torch.Tensor, box: Box) -> Mismatch | None:
    """None where the box's elements are equal."""
    published = source_block(flat, box).to(memory.device)
    expected = memory.widen(published, box.destination, box.tensor)
    held = memory.block(box)
    if torch.equal(expected, held):
        return None
    differing = (expected != held).nonzero()
    strides = torch.tensor(box.source_strides, device=differing.device)
    first = int((differing[0] * strides).sum()) + box.source_offset
    return Mismatch(box.tensor, box.destination, len(differing), first)
