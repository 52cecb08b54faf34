"""Scattered elements of plain memory: staging reads them, committing writes them.

memory is any C-contiguous buffer whose items have 1, 2, 4 or 8 bytes (view bfloat16 as uint16); offsets are
32- or 64-bit integers that count its items. All offsets are checked before anything is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from native import _core

if TYPE_CHECKING:
    from native.buffers import BufferLike


class GatheredXor(NamedTuple):
    """Elements before and after: unsigned integers of the memory's item size, in the order of the offsets."""

    old: NDArray[Any]
    new: NDArray[Any]


class Grouped(NamedTuple):
    """order: item indices (uint32) grouped by key, in their old order within one; starts: key k's are
    order[starts[k] : starts[k + 1]] (uint64, one more than there are keys)."""

    order: NDArray[Any]
    starts: NDArray[Any]


def gather(memory: BufferLike, offsets: BufferLike) -> NDArray[Any]:
    """memory's items at offsets, as unsigned integers. Raises IndexError if an offset lies outside."""
    return _core.gather(memory, offsets)


def gather_xor(memory: BufferLike, offsets: BufferLike, masks: BufferLike) -> GatheredXor:
    """memory's items at offsets, and the same XOR masks (of the items' size), in one pass.

    Raises IndexError if an offset lies outside, ValueError if the masks do not fit.
    """
    return GatheredXor(*_core.gather_xor(memory, offsets, masks))


def scatter(memory: BufferLike, offsets: BufferLike, values: BufferLike) -> None:
    """Writes values (of the items' size) to memory's items at offsets; later ones win where offsets repeat.

    Raises IndexError or ValueError before the first write if an offset lies outside or the values do not fit.
    """
    _core.scatter(memory, offsets, values)


def counting_sort(keys: BufferLike, key_count: int) -> Grouped:
    """Groups items by keys (uint32, all below key_count) in linear time, stably. Raises IndexError if one is not."""
    return Grouped(*_core.counting_sort(keys, key_count))


def prefer_huge_pages(memory: BufferLike) -> bool:
    """Asks the kernel to back memory with huge pages, which makes scattered access about 1.5 times as fast.

    To be called before the memory is first written. False where the system does not offer it.
    """
    return _core.prefer_huge_pages(memory)
