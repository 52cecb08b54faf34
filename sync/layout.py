"""Where each checkpoint element lives in engine memory: the layout map.

A map is a list of strided boxes. One box says that a strided block of a checkpoint tensor (row-major, as
published) is the strided block of one destination (the flat storage of an engine tensor on one rank). Maps are
traced (`sync.trace`) and proved (`sync.verify`), never written by hand. This module is their value: pure, no I/O,
no engine. A map crosses processes as Arrow IPC (`LayoutMap.to_ipc`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa


class LayoutError(Exception):
    """The engine's memory cannot be mapped to the checkpoint exactly, so sync is refused. Names the tensor."""


# safetensors dtype names (https://github.com/huggingface/safetensors, "Format") and their sizes in bytes.
ELEMENT_SIZE_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}


@dataclass(frozen=True)
class CheckpointTensor:
    """One tensor of the checkpoint: `dtype` is the safetensors name, `shape` is in elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def element_size(self) -> int:
        """Bytes of one element."""
        return ELEMENT_SIZE_BYTES[self.dtype]

    @property
    def size_bytes(self) -> int:
        return self.elements * self.element_size


@dataclass(frozen=True)
class Destination:
    """One engine tensor of one rank, addressed as the flat storage behind it."""

    name: str
    dtype: str
    storage_elements: int

    @property
    def element_size(self) -> int:
        return ELEMENT_SIZE_BYTES[self.dtype]


@dataclass(frozen=True)
class Box:
    """Element `source_offset + i . source_strides` of `tensor` is `destination_offset + i . destination_strides`.

    `i` runs over `extents`. Offsets and strides count elements. Dimensions are sorted by descending source stride
    and nested (`source_strides[k] >= extents[k+1] * source_strides[k+1]`), so that a position has at most one index.
    """

    tensor: str
    destination: str
    source_offset: int
    destination_offset: int
    extents: tuple[int, ...]
    source_strides: tuple[int, ...]
    destination_strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.extents)


def make_box(
    tensor: str,
    destination: str,
    source: tuple[int, Sequence[int]],
    target: tuple[int, Sequence[int]],
    extents: Sequence[int],
) -> Box:
    """Normalises two strided views of equal shape, each `(offset, strides)`, into a box.

    Dimensions of extent 1 go, neighbours that are contiguous on both sides merge. Raises LayoutError where the
    source view overlaps itself (a broadcast), since such a position would have several addresses in one box.
    """
    (source_offset, source_strides), (target_offset, target_strides) = source, target
    dimensions = sorted(
        (
            (stride, target_stride, extent)
            for stride, target_stride, extent in zip(source_strides, target_strides, extents, strict=True)
            if extent != 1
        ),
        reverse=True,
    )
    merged: list[tuple[int, int, int]] = []
    for stride, target_stride, extent in dimensions:
        if merged:
            outer_stride, outer_target, outer_extent = merged[-1]
            if outer_stride < extent * stride or stride == 0:
                raise LayoutError(
                    f"tensor {tensor!r} -> {destination!r}: the copied view overlaps itself "
                    f"(strides {list(source_strides)} over extents {list(extents)})"
                )
            if outer_stride == extent * stride and outer_target == extent * target_stride:
                merged[-1] = (stride, target_stride, outer_extent * extent)
                continue
        merged.append((stride, target_stride, extent))
    merged = merged or [(1, 1, 1)]
    return Box(
        tensor,
        destination,
        source_offset,
        target_offset,
        tuple(extent for _, _, extent in merged),
        tuple(stride for stride, _, _ in merged),
        tuple(stride for _, stride, _ in merged),
    )


_INTEGERS = pa.list_(pa.int64())
_TENSOR_COLUMNS: dict[str, pa.DataType] = {
    "name": pa.string(),
    "dtype": pa.string(),
    "shape": _INTEGERS,
}
_DESTINATION_COLUMNS: dict[str, pa.DataType] = {
    "name": pa.string(),
    "dtype": pa.string(),
    "storage_elements": pa.int64(),
}
_BOX_COLUMNS: dict[str, pa.DataType] = {
    "tensor": pa.string(),
    "destination": pa.string(),
    "source_offset": pa.int64(),
    "destination_offset": pa.int64(),
    "extents": _INTEGERS,
    "source_strides": _INTEGERS,
    "destination_strides": _INTEGERS,
}


@dataclass(frozen=True)
class LayoutMap:
    """The layout map of one rank.

    `tensors`: every checkpoint tensor, held here or not; `boxes`: what this rank holds.
    """

    rank: int
    tensors: tuple[CheckpointTensor, ...]
    destinations: tuple[Destination, ...]
    boxes: tuple[Box, ...] = field(repr=False)

    @cached_property
    def tensor(self) -> dict[str, CheckpointTensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def destination(self) -> dict[str, Destination]:
        return {destination.name: destination for destination in self.destinations}

    @cached_property
    def boxes_of(self) -> dict[str, tuple[Box, ...]]:
        """Boxes by checkpoint tensor."""
        grouped: dict[str, list[Box]] = {}
        for box in self.boxes:
            grouped.setdefault(box.tensor, []).append(box)
        return {name: tuple(boxes) for name, boxes in grouped.items()}

    def to_ipc(self) -> bytes:
        """Serialises the map as three Arrow IPC streams, one after the other: tensors, destinations, boxes."""
        sink = pa.BufferOutputStream()
        for schema, rows in (
            (pa.schema(_TENSOR_COLUMNS), self.tensors),
            (pa.schema(_DESTINATION_COLUMNS), self.destinations),
            (pa.schema(_BOX_COLUMNS), self.boxes),
        ):
            stamped = schema.with_metadata({"rank": str(self.rank)})
            columns = [pa.array([getattr(row, name) for row in rows], type) for name, type in _fields(schema)]
            with pa.ipc.new_stream(sink, stamped) as writer:
                writer.write_table(pa.table(columns, schema=stamped))
        return bytes(sink.getvalue())

    @staticmethod
    def from_ipc(data: bytes) -> LayoutMap:
        """Reads what `to_ipc` wrote."""
        source = pa.BufferReader(data)
        tables = [pa.ipc.open_stream(source).read_all() for _ in range(3)]
        tensors, destinations, boxes = (table.to_pylist() for table in tables)
        metadata = tables[0].schema.metadata or {}
        return LayoutMap(
            int(metadata[b"rank"]),
            tuple(CheckpointTensor(row["name"], row["dtype"], tuple(row["shape"])) for row in tensors),
            tuple(Destination(**row) for row in destinations),
            tuple(_box(row) for row in boxes),
        )


def _fields(schema: pa.Schema) -> Iterable[tuple[str, pa.DataType]]:
    return [(column.name, column.type) for column in schema]


def _box(row: dict[str, Any]) -> Box:
    lists = {name: tuple(row[name]) for name in ("extents", "source_strides", "destination_strides")}
    return Box(**{**row, **lists})
