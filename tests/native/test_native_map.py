"""map_positions against an enumeration of the box."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import native


@st.composite
def boxes(draw: st.DrawFn) -> tuple[int, int, list[int], list[int], list[int]]:
    extents = draw(st.lists(st.integers(1, 6), min_size=0, max_size=4))
    strides: list[int] = []
    inner = 1
    for extent in reversed(extents):
        strides.insert(0, draw(st.integers(inner, inner + 5)))
        inner = strides[0] * extent
    destination_strides = draw(st.lists(st.integers(-9, 40), min_size=len(extents), max_size=len(extents)))
    lowest = sum(min(0, s) * (e - 1) for s, e in zip(destination_strides, extents, strict=True))
    return (
        draw(st.integers(0, 20)),
        draw(st.integers(-lowest, 100 - lowest)),
        extents,
        strides,
        destination_strides,
    )


@settings(deadline=None)
@given(box=boxes(), seed=st.integers(0, 1000), dtype=st.sampled_from([np.uint32, np.uint64]))
def test_every_position_inside_the_box_is_mapped(
    box: tuple[int, int, list[int], list[int], list[int]], seed: int, dtype: type
) -> None:
    source, destination, extents, strides, destination_strides = box
    table = {
        source + sum(i * s for i, s in zip(at, strides, strict=True)): destination
        + sum(i * s for i, s in zip(at, destination_strides, strict=True))
        for at in itertools.product(*map(range, extents))
    }
    random = np.random.default_rng(seed)
    positions = np.unique(random.integers(0, max(table) + 10, 50)).astype(dtype)
    index, target = native.map_positions(positions, source, destination, extents, strides, destination_strides)
    expected = [(i, table[p]) for i, p in enumerate(positions.tolist()) if p in table]
    assert list(zip(index.tolist(), target.tolist(), strict=True)) == expected
    assert index.dtype == target.dtype == np.uint32


@pytest.mark.parametrize("stride", [1, 3, 4096, 7168, (1 << 31) + 1, (1 << 32) + 5, 1 << 33])
def test_large_strides_divide_exactly(stride: int) -> None:
    random = np.random.default_rng(stride)
    rows = random.integers(0, min(1000, (1 << 40) // stride), 500).astype(np.uint64)
    columns = random.integers(0, min(stride, 9000), 500).astype(np.uint64)
    positions = np.unique(rows * np.uint64(stride) + columns)
    index, target = native.map_positions(positions, 0, 0, [1000, min(stride, 9000)], [stride, 1], [9000, 1])
    assert index.tolist() == list(range(positions.size))
    expected = positions // np.uint64(stride) * np.uint64(9000) + positions % np.uint64(stride)
    np.testing.assert_array_equal(target, expected)


def test_destinations_beyond_32_bits_are_wide() -> None:
    positions = np.array([3, 4, 5], np.uint32)
    index, target = native.map_positions(positions, 4, 7, [2], [1], [1 << 33])
    assert target.dtype == np.uint64
    assert (index.tolist(), target.tolist()) == ([1, 2], [7, 7 + (1 << 33)])


def test_malformed_boxes_are_refused() -> None:
    positions = np.arange(4, dtype=np.uint32)
    for extents, strides, message in (
        ([2, 3], [2, 1], "nested"),
        ([2, 3], [1, 2], "nested"),
        ([2], [0], "source stride is zero"),
        ([0], [1], "extent is zero"),
    ):
        with pytest.raises(ValueError, match=message):
            native.map_positions(positions, 0, 0, extents, strides, [1] * len(extents))
    with pytest.raises(ValueError, match="negative"):
        native.map_positions(positions, 0, 1, [3], [1], [-1])
    with pytest.raises(ValueError, match="as many strides as extents"):
        native.map_positions(positions, 0, 1, [3], [1, 1], [1])
