"""What travels from the planner to a worker: changed elements of one rank, as Arrow in anonymous shared memory.

A batch is two Arrow IPC streams, one after the other, in a memfd: a small table of segments (which rows belong to
which checkpoint tensor and destination), then one record batch of elements. Readers get views of the mapped memory,
not copies; the memory goes when the last process unmaps it, so a crash leaves nothing behind.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Segment:
    """Rows `[start, start + count)` of a batch: changes of `tensor` that live in `destination`.

    `counted`: whether they enter the checksum; a replica of an element that another segment counted does not.
    """

    tensor: str
    destination: str
    start: int
    count: int
    counted: bool


@dataclass(frozen=True)
class ElementBatch:
    """Changed elements of one element size, structure of arrays, all of the same length.

    `destination_offsets`: u32 or u64, element of the destination's flat storage. `positions`: u32 or u64, element of
    the checkpoint tensor. `masks`: unsigned of the element size. `keeps`: None, or unsigned of the element size; the
    new value is `(old & keep) ^ mask`, so None (all ones) is an XOR delta and 0 an absolute value.
    """

    segments: tuple[Segment, ...]
    destination_offsets: Array
    positions: Array
    masks: Array
    keeps: Array | None

    @property
    def size_bytes(self) -> int:
        arrays = (self.destination_offsets, self.positions, self.masks, self.keeps)
        return sum(array.nbytes for array in arrays if array is not None)


_SEGMENT_COLUMNS: dict[str, pa.DataType] = {
    "tensor": pa.string(),
    "destination": pa.string(),
    "start": pa.int64(),
    "count": pa.int64(),
    "counted": pa.bool_(),
}


def write_batch(batch: ElementBatch) -> int:
    """Writes a batch into a new memfd and returns the descriptor, which the caller owns."""
    columns = {
        "destination_offset": batch.destination_offsets,
        "position": batch.positions,
        "mask": batch.masks,
    }
    if batch.keeps is not None:
        columns["keep"] = batch.keeps
    elements = pa.record_batch({name: pa.array(array) for name, array in columns.items()})
    segments = pa.Table.from_pylist(
        [
            {
                "tensor": segment.tensor,
                "destination": segment.destination,
                "start": segment.start,
                "count": segment.count,
                "counted": segment.counted,
            }
            for segment in batch.segments
        ],
        schema=pa.schema(_SEGMENT_COLUMNS),
    )
    descriptor = os.memfd_create("rollout-elements", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as sink:
        with pa.ipc.new_stream(sink, pa.schema(_SEGMENT_COLUMNS)) as writer:
            writer.write_table(segments)
        with pa.ipc.new_stream(sink, elements.schema) as writer:
            writer.write_batch(elements)
    return descriptor


def read_batch(descriptor: int) -> ElementBatch:
    """Maps what `write_batch` wrote. The arrays are read-only views that keep the mapping alive; closes nothing."""
    mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    source = pa.BufferReader(pa.py_buffer(mapped))
    segments = pa.ipc.open_stream(source).read_all().to_pylist()
    elements = pa.ipc.open_stream(source).read_next_batch()
    columns = {name: elements.column(name).to_numpy() for name in elements.schema.names}
    return ElementBatch(
        tuple(Segment(**row) for row in segments),
        columns["destination_offset"],
        columns["position"],
        columns["mask"],
        columns.get("keep"),
    )


def concatenate(parts: Sequence[Array]) -> Array:
    """One array of the parts; the widest dtype of them (u32 offsets beside u64 ones become u64)."""
    return np.concatenate(parts) if len(parts) > 1 else parts[0]
