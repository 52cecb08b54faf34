"""Maps changed checkpoint elements to the ranks that hold them and to their addresses there.

Pure numpy over layout maps of all ranks; knows no engine. An element may live in several places (replicated norms,
tied heads): each place gets it, exactly one place counts it for the checksum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from native import map_positions
from sync.layout import Box, LayoutError, LayoutMap
from sync.segments import ElementBatch, Segment, concatenate

Array = npt.NDArray[Any]
Rows = slice | Array


@dataclass(frozen=True)
class Changes:
    """Changed elements of one tensor: sorted positions (u32 or u64), masks and keeps (see `ElementBatch`)."""

    positions: Array
    masks: Array
    keeps: Array | None = None

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class RoutedPart:
    """Changes of one tensor in one destination of one rank (columns as in `ElementBatch`)."""

    tensor: str
    destination: str
    counted: bool
    offsets: Array
    positions: Array
    masks: Array
    keeps: Array | None


class Router:
    """Routes changes to ranks. `layouts` holds one map a rank, in rank order."""

    def __init__(self, layouts: Sequence[LayoutMap]) -> None:
        self.layouts = tuple(layouts)
        self._places: dict[str, list[tuple[int, Box]]] = {}
        for layout in layouts:
            for name, boxes in layout.boxes_of.items():
                self._places.setdefault(name, []).extend((layout.rank, box) for box in boxes)

    @property
    def served(self) -> frozenset[str]:
        """Names of the checkpoint tensors that some rank holds."""
        return frozenset(self._places)

    def check_coverage(self) -> None:
        """Raises LayoutError unless the ranks together hold every element of every tensor that any of them holds.

        Regions of a tensor must be equal (replicas) or disjoint; other overlaps are refused.
        """
        for name, places in self._places.items():
            elements = self.layouts[0].tensor[name].elements
            regions = {_region(box) for _, box in places}
            if regions == {(0, (elements,), (1,))}:
                continue
            covered = np.zeros(elements, dtype=np.uint8)
            for offset, extents, strides in regions:
                np.lib.stride_tricks.as_strided(covered[offset:], extents, strides)[...] += 1
            missing, shared = int((covered == 0).sum()), int((covered > 1).sum())
            if missing or shared:
                raise LayoutError(
                    f"tensor {name!r}: of {elements} elements, {missing} are on no rank and {shared} are in blocks "
                    "that overlap without being replicas"
                )

    def counted_boxes(self, tensor: str, rank: int) -> list[bool]:
        """For each of the rank's boxes of `tensor`: whether it is the first to hold its region."""
        seen: set[_Region] = set()
        counted: list[bool] = []
        for owner, box in self._places.get(tensor, ()):
            if owner == rank:
                counted.append(_region(box) not in seen)
            seen.add(_region(box))
        return counted

    def route(self, tensor: str, changes: Changes) -> Iterator[tuple[int, list[RoutedPart]]]:
        """Yields, for each rank that holds some of the changes, what it holds. LayoutError if an element has none."""
        seen = np.zeros(len(changes), dtype=np.bool_)
        by_rank: dict[int, list[RoutedPart]] = {}
        for rank, box in self._places.get(tensor, ()):
            rows, offsets = positions_in_box(box, changes.positions)
            fresh = ~seen[rows]
            seen[rows] = True
            for counted, chosen in ((True, fresh), (False, ~fresh)):
                if not chosen.any():
                    continue
                part = _part(tensor, box.destination, counted, rows, offsets, changes, chosen)
                by_rank.setdefault(rank, []).append(part)
        if not seen.all():
            position = int(changes.positions[np.argmin(seen)])
            raise LayoutError(f"tensor {tensor!r}: element {position} is held by no rank")
        yield from by_rank.items()


def _part(
    tensor: str, destination: str, counted: bool, rows: Rows, offsets: Array, changes: Changes, chosen: Array
) -> RoutedPart:
    columns = (offsets, changes.positions[rows], changes.masks[rows])
    keeps = None if changes.keeps is None else changes.keeps[rows]
    if not chosen.all():
        columns = tuple(column[chosen] for column in columns)  # type: ignore[assignment]
        keeps = None if keeps is None else keeps[chosen]
    return RoutedPart(tensor, destination, counted, *columns, keeps)


def positions_in_box(box: Box, positions: Array) -> tuple[Rows, Array]:
    """Which of the sorted `positions` lie in the box, and their destination offsets.

    Returns rows (a slice where the box is one run, else indices) and offsets (u32 where they fit, else u64).
    """
    if box.source_strides != (1,) or box.destination_strides != (1,):
        strides = (box.source_strides, box.destination_strides)
        strides = (box.source_strides, box.destination_strides)
        return map_positions(positions, box.source_offset, box.destination_offset, box.extents, *strides)
    # One contiguous run, by far the most common box: a slice and a shift.
    low, high = np.searchsorted(positions, (box.source_offset, box.source_offset + box.elements))
    offset_dtype = np.uint32 if box.destination_offset + box.elements <= 1 << 32 else np.uint64
    shift = box.destination_offset - box.source_offset
    return slice(low, high), (positions[low:high].astype(np.int64) + shift).astype(offset_dtype)


_Region = tuple[int, tuple[int, ...], tuple[int, ...]]


def _region(box: Box) -> _Region:
    return box.source_offset, box.extents, box.source_strides


class BatchBuilder:
    """Collects routed parts of one rank and one element size into batches of bounded size.

    The default lets a worker stage one batch while the next is decoded, also when a delta is small.
    """

    def __init__(self, limit_bytes: int = 2 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[RoutedPart] = []
        self._size_bytes = 0

    def add(self, parts: Sequence[RoutedPart]) -> None:
        for part in parts:
            self._parts.append(part)
            self._size_bytes += part.offsets.nbytes + part.positions.nbytes + part.masks.nbytes

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= self._limit_bytes

    def take(self) -> ElementBatch | None:
        """The collected batch, or None if nothing was collected; the builder is empty afterwards."""
        parts, self._parts, self._size_bytes = self._parts, [], 0
        if not parts:
            return None
        segments, start = [], 0
        for part in parts:
            segments.append(Segment(part.tensor, part.destination, start, len(part.offsets), part.counted))
            start += len(part.offsets)
        return ElementBatch(
            tuple(segments),
            concatenate([part.offsets for part in parts]),
            concatenate([part.positions for part in parts]),
            concatenate([part.masks for part in parts]),
            _joined_keeps(parts),
        )


def _joined_keeps(parts: Sequence[RoutedPart]) -> Array | None:
    if all(part.keeps is None for part in parts):
        return None
    return concatenate(
        [np.full_like(part.masks, ~part.masks.dtype.type(0)) if part.keeps is None else part.keeps for part in parts]
    )
