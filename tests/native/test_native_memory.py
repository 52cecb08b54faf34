"""Gather, scatter and grouping against numpy."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import native


@pytest.mark.parametrize("item_size", [1, 2, 4, 8])
@pytest.mark.parametrize("offset_dtype", [np.uint32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 47, 1000])
def test_what_is_gathered_and_scattered_is_what_numpy_indexes(item_size: int, offset_dtype: type, count: int) -> None:
    random = np.random.default_rng(count)
    memory = random.integers(0, 256, 8 * 5000, np.uint8).view(f"u{item_size}")
    offsets = random.permutation(memory.size)[:count].astype(offset_dtype)
    masks = random.integers(0, 256, count * item_size, np.uint8).view(memory.dtype)
    np.testing.assert_array_equal(native.gather(memory, offsets), memory[offsets])
    old, new = native.gather_xor(memory, offsets, masks)
    np.testing.assert_array_equal(old, memory[offsets])
    np.testing.assert_array_equal(new, memory[offsets] ^ masks)
    expected = memory.copy()
    expected[offsets] = new
    native.scatter(memory, offsets, new)
    np.testing.assert_array_equal(memory, expected)


def test_nothing_is_written_if_one_offset_lies_outside() -> None:
    memory = np.zeros(10, np.uint16)
    with pytest.raises(IndexError, match="below the memory's 10 elements, found 10"):
        native.scatter(memory, np.array([1, 10], np.uint32), np.ones(2, np.uint16))
    with pytest.raises(IndexError):
        native.scatter(memory, np.array([1, -1]), np.ones(2, np.uint16))
    with pytest.raises(ValueError, match=r"values: expected 2 items of 2 bytes, found 3 of 2"):
        native.scatter(memory, np.array([1, 2]), np.ones(3, np.uint16))
    with pytest.raises(ValueError, match="masks: expected 2 items of 2 bytes, found 2 of 1"):
        native.gather_xor(memory, np.array([1, 2]), np.ones(2, np.uint8))
    assert not memory.any()


@settings(deadline=None)
@given(keys=st.lists(st.integers(0, 9), max_size=60))
def test_items_are_grouped_stably(keys: list[int]) -> None:
    array = np.array(keys, np.uint32)
    order, starts = native.counting_sort(array, 10)
    np.testing.assert_array_equal(order, np.argsort(array, kind="stable"))
    np.testing.assert_array_equal(starts, np.searchsorted(np.sort(array), np.arange(11)))


def test_keys_that_are_none_are_refused() -> None:
    with pytest.raises(IndexError, match="below 3, found 3"):
        native.counting_sort(np.array([3], np.uint32), 3)
    with pytest.raises(TypeError, match="expected uint32"):
        native.counting_sort(np.array([3], np.int64), 4)


def test_huge_pages_can_be_asked_for() -> None:
    with mmap.mmap(-1, 4 << 20) as memory:
        assert isinstance(native.prefer_huge_pages(memory), bool)
    assert native.prefer_huge_pages(bytearray(10)) is False
