"""The worker half of a sync: stage while the old policy serves, commit inside the pause, undo if a peer failed.

Owns the plans. Refuses to own transport, threads and the decision to commit. All work on values happens before the
pause; a commit is one indexed write per destination.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from native import adler32_add, adler32_correction
from sync.memory import INTEGER_OF_SIZE, EngineMemory, as_integers, source_block, to_device
from sync.segments import ElementBatch, Segment

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class DestinationWrites:
    """Sealed writes to one destination: flat offsets (int64) and absolute values, on the destination's device."""

    destination: str
    offsets: torch.Tensor
    new_values: torch.Tensor
    old_values: torch.Tensor


@dataclass(frozen=True)
class WritePlan:
    """Everything one rank writes for one version, and what undoes it. Immutable once sealed."""

    version: int
    writes: tuple[DestinationWrites, ...]
    corrections: dict[str, int] = field(repr=False)

    @property
    def elements(self) -> int:
        return sum(len(write.offsets) for write in self.writes)

    @property
    def size_bytes(self) -> int:
        """Memory that the plan holds."""
        return sum(
            tensor.nbytes for write in self.writes for tensor in (write.offsets, write.new_values, write.old_values)
        )

    def commit(self, memory: EngineMemory) -> None:
        """Writes the new values. Call only while no step runs."""
        for write in self.writes:
            memory.write(write.destination, write.offsets, write.new_values)

    def undo(self, memory: EngineMemory) -> None:
        """Writes the old values back."""
        for write in self.writes:
            memory.write(write.destination, write.offsets, write.old_values)


class Stager:
    """Builds one rank's write plan out of batches. Reads engine memory, never writes it."""

    def __init__(self, memory: EngineMemory, version: int) -> None:
        self._memory = memory
        self._version = version
        self._writes: dict[str, list[DestinationWrites]] = {}
        self._corrections: dict[str, int] = {}

    def add_batch(self, batch: ElementBatch) -> None:
        """Stages sparse changes: gathers old values, computes absolute new ones and the checksum corrections."""
        for segment in batch.segments:
            rows = slice(segment.start, segment.start + segment.count)
            self._add_segment(
                segment,
                batch.destination_offsets[rows],
                batch.positions[rows],
                batch.masks[rows],
                None if batch.keeps is None else batch.keeps[rows],
            )

    def _add_segment(
        self, segment: Segment, offsets: Array, positions: Array, masks: Array, keeps: Array | None
    ) -> None:
        memory, tensor, destination = self._memory, segment.tensor, segment.destination
        index = to_device(offsets.astype(np.int64), memory.device)
        old_held = memory.gather(destination, index)
        old = memory.narrow(old_held, destination, tensor)
        kept = old if keeps is None else old & _as_tensor(keeps, old)
        new = kept ^ _as_tensor(masks, old)
        self._record(
            DestinationWrites(destination, index, memory.widen(new, destination, tensor), old_held),
        )
        if segment.counted:
            self._count(tensor, positions, old, new)

    def add_dense(self, tensor: str, published: torch.Tensor, counted: Sequence[bool]) -> int:
        """Stages a whole tensor as published (1-D, uint8, CPU): only what differs from engine memory is kept.

        `counted`: for each of this rank's boxes of the tensor, whether its changes enter the checksum here (a
        replica is counted elsewhere). Returns the number of counted differing elements.
        """
        memory = self._memory
        element_size = memory.layout.tensor[tensor].element_size
        flat = published.view(INTEGER_OF_SIZE[element_size])
        changed = 0
        for box, counts in zip(memory.layout.boxes_of.get(tensor, ()), counted, strict=True):
            new = to_device(source_block(flat, box).numpy(), memory.device)
            old = memory.read_box(box)
            index = (new != old).nonzero()
            if len(index) == 0:
                continue
            offsets = _linear(index, box.destination_strides, box.destination_offset)
            positions = _linear(index, box.source_strides, box.source_offset)
            old_values, new_values = old[tuple(index.T)], new[tuple(index.T)]
            self._record(
                DestinationWrites(
                    box.destination,
                    offsets,
                    memory.widen(new_values, box.destination, tensor),
                    memory.gather(box.destination, offsets),
                )
            )
            if counts:
                self._count(tensor, positions.cpu().numpy(), old_values, new_values)
                changed += len(index)
        return changed

    def _record(self, writes: DestinationWrites) -> None:
        if len(writes.offsets):
            self._writes.setdefault(writes.destination, []).append(writes)

    def _count(self, tensor: str, positions: Array, old: torch.Tensor, new: torch.Tensor) -> None:
        size_bytes = self._memory.layout.tensor[tensor].size_bytes
        correction = adler32_correction(positions, _as_array(old), _as_array(new), size_bytes)
        self._corrections[tensor] = adler32_add(self._corrections.get(tensor, 0), correction)

    def overlay(self, tensor: str, target: torch.Tensor) -> None:
        """Writes this rank's elements of `tensor`, as they would be after the commit, into `target`.

        `target`: the whole tensor as 1-D uint8 on the CPU, shared between ranks; only elements that this rank holds
        are written. For checksum formats that need all bytes of the new tensor.
        """
        memory = self._memory
        flat = target.view(INTEGER_OF_SIZE[memory.layout.tensor[tensor].element_size])
        for box in memory.layout.boxes_of.get(tensor, ()):
            held = memory.flat[box.destination].clone()
            for write in self._writes.get(box.destination, ()):
                held.index_copy_(0, write.offsets, write.new_values)
            block = held.as_strided(box.extents, box.destination_strides, box.destination_offset)
            source_block(flat, box).copy_(memory.narrow(block, box.destination, tensor))

    def seal(self) -> WritePlan:
        """The immutable plan, one write a destination."""
        sealed = tuple(_join(name, parts) for name, parts in sorted(self._writes.items()))
        return WritePlan(self._version, sealed, dict(self._corrections))


def _join(destination: str, parts: Iterable[DestinationWrites]) -> DestinationWrites:
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    return DestinationWrites(
        destination,
        torch.cat([part.offsets for part in parts]),
        torch.cat([part.new_values for part in parts]),
        torch.cat([part.old_values for part in parts]),
    )


def _linear(index: torch.Tensor, strides: tuple[int, ...], offset: int) -> torch.Tensor:
    return (index * torch.tensor(strides, device=index.device)).sum(dim=1) + offset


def _as_tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    """Unsigned numpy values as signed integers of the same size on `like`'s device (a copy: batches are read-only)."""
    return as_integers(to_device(np.array(array), like.device))


def _as_array(tensor: torch.Tensor) -> Array:
    array: Array = tensor.cpu().numpy()
    return array.view(f"u{array.itemsize}")
