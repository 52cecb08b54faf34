"""Layout boxes and the router, against the plain meaning of a strided copy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync.layout import Box, CheckpointTensor, Destination, LayoutError, LayoutMap, make_box
from sync.mapping import BatchBuilder, Changes, Router, positions_in_box

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@st.composite
def sliced_copies(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Box]:
    """A copy of a slice of a permuted tensor into a slice of a larger one, as index arrays, and its box."""
    source_shape = draw(SHAPES)
    source = np.arange(prod(source_shape)).reshape(source_shape)
    order = draw(st.permutations(range(len(source_shape))))
    view = source.transpose(order)
    for axis in range(view.ndim):
        start = draw(st.integers(0, view.shape[axis] - 1))
        stop = draw(st.integers(start + 1, view.shape[axis]))
        view = view[(slice(None),) * axis + (slice(start, stop),)]
    target_shape = tuple(extent + draw(st.integers(0, 3)) for extent in view.shape)
    corner = tuple(draw(st.integers(0, outer - inner)) for outer, inner in zip(target_shape, view.shape, strict=True))
    target = np.arange(prod(target_shape)).reshape(target_shape)
    target = target[tuple(slice(at, at + extent) for at, extent in zip(corner, view.shape, strict=True))]
    box = make_box("t", "d", _view(view), _view(target), view.shape)
    return view, target, box


def _view(array: np.ndarray) -> tuple[int, list[int]]:
    return int(array.flat[0]), [stride // array.itemsize for stride in array.strides]


@given(sliced_copies(), st.data())
def test_a_box_maps_positions_as_the_copy_it_came_from(
    copy: tuple[np.ndarray, np.ndarray, Box], data: st.DataObject
) -> None:
    source, target, box = copy
    expected = dict(zip(source.ravel().tolist(), target.ravel().tolist(), strict=True))
    limit = int(source.max()) + 5
    chosen = sorted(data.draw(st.sets(st.integers(0, limit))))
    positions = np.array(chosen, np.uint32)
    rows, offsets = positions_in_box(box, positions)
    assert dict(zip(positions[rows].tolist(), offsets.tolist(), strict=True)) == {
        position: expected[position] for position in chosen if position in expected
    }


def test_neighbouring_dimensions_merge_into_one_run() -> None:
    box = make_box("t", "d", (0, (12, 4, 1)), (100, (12, 4, 1)), (2, 3, 4))
    assert (box.extents, box.source_strides, box.destination_strides) == ((24,), (1,), (1,))


def test_a_broadcast_copy_is_refused() -> None:
    with pytest.raises(LayoutError, match="overlaps itself"):
        make_box("t", "d", (0, (0, 1)), (0, (4, 1)), (3, 4))


def column_parallel(rows: int, columns: int, ranks: int, replicated: bool = False) -> list[LayoutMap]:
    """A matrix split by columns over ranks (or replicated), and a vector that every rank holds."""
    tensors = (CheckpointTensor("matrix", "BF16", (rows, columns)), CheckpointTensor("norm", "BF16", (columns,)))
    share = columns if replicated else columns // ranks
    maps = []
    for rank in range(ranks):
        start = 0 if replicated else rank * share
        boxes = (
            make_box("matrix", "m", (start, (columns, 1)), (7, (share, 1)), (rows, share)),
            make_box("norm", "n", (0, (1,)), (0, (1,)), (columns,)),
        )
        destinations = (Destination("m", "BF16", rows * share + 7), Destination("n", "BF16", columns))
        maps.append(LayoutMap(rank, tensors, destinations, boxes))
    return maps


@given(st.integers(1, 4), st.integers(1, 5), st.booleans(), st.data())
def test_every_rank_gets_its_elements_and_each_is_counted_once(
    ranks: int, rows: int, replicated: bool, data: st.DataObject
) -> None:
    columns = ranks * data.draw(st.integers(1, 4))
    maps = column_parallel(rows, columns, ranks, replicated)
    router = Router(maps)
    router.check_coverage()
    positions = np.array(sorted(data.draw(st.sets(st.integers(0, rows * columns - 1)))), np.uint32)
    masks = np.arange(1, len(positions) + 1, dtype=np.uint16)
    counted: list[int] = []
    for rank, parts in router.route("matrix", Changes(positions, masks)):
        share = columns if replicated else columns // ranks
        start = 0 if replicated else rank * share
        for part in parts:
            for offset, position, mask in zip(part.offsets, part.positions, part.masks, strict=True):
                row, column = divmod(int(position), columns)
                assert int(offset) == 7 + row * share + column - start
                assert mask == masks[np.searchsorted(positions, position)]
            counted += part.positions.tolist() if part.counted else []
    assert sorted(counted) == positions.tolist()


def test_replicas_of_a_whole_tensor_are_counted_on_the_first_rank_only() -> None:
    router = Router(column_parallel(2, 4, 2))
    assert [router.counted_boxes("norm", rank) for rank in range(2)] == [[True], [False]]
    assert [router.counted_boxes("matrix", rank) for rank in range(2)] == [[True], [True]]


def test_an_element_that_no_rank_holds_is_refused_at_start_and_when_routed() -> None:
    maps = column_parallel(2, 4, 2)[:1]
    router = Router(maps)
    with pytest.raises(LayoutError, match="4 are on no rank"):
        router.check_coverage()
    with pytest.raises(LayoutError, match="element 3 is held by no rank"):
        list(router.route("matrix", Changes(np.array([0, 3], np.uint32), np.ones(2, np.uint16))))


def test_blocks_that_overlap_without_being_replicas_are_refused() -> None:
    tensor = CheckpointTensor("t", "BF16", (8,))
    boxes = (
        make_box("t", "d", (0, (1,)), (0, (1,)), (5,)),
        make_box("t", "d", (3, (1,)), (5, (1,)), (5,)),
    )
    with pytest.raises(LayoutError, match="2 are in blocks"):
        Router([LayoutMap(0, (tensor,), (Destination("d", "BF16", 16),), boxes)]).check_coverage()


def test_offsets_beyond_32_bits_are_kept_whole() -> None:
    box = Box("t", "d", 0, 1 << 33, (10,), (1,), (1,))
    _, offsets = positions_in_box(box, np.array([0, 9], np.uint32))
    assert offsets.tolist() == [1 << 33, (1 << 33) + 9]


def test_layout_maps_cross_processes_unchanged() -> None:
    for layout in column_parallel(3, 6, 3):
        assert LayoutMap.from_ipc(layout.to_ipc()) == layout


def test_a_batch_joins_narrow_and_wide_offsets_and_mixed_keeps() -> None:
    router = Router(column_parallel(2, 4, 1))
    builder = BatchBuilder()
    plain = Changes(np.array([1, 5], np.uint32), np.array([1, 2], np.uint16))
    kept = Changes(np.array([2], np.uint64), np.array([7], np.uint16), np.array([0xFF00], np.uint16))
    for tensor, changes in (("matrix", plain), ("norm", kept)):
        for _, parts in router.route(tensor, changes):
            builder.add(parts)
    batch = builder.take()
    assert batch is not None
    assert [(part.tensor, part.start, part.count) for part in batch.segments] == [("matrix", 0, 2), ("norm", 2, 1)]
    assert batch.positions.tolist() == [1, 5, 2]
    assert batch.keeps is not None
    assert batch.keeps.tolist() == [0xFFFF, 0xFFFF, 0xFF00]
    assert builder.take() is None
