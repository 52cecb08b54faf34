"""The native core: sparse decoding of zstd-compressed XOR deltas, Adler-32, layout mapping, delta encoding.

Every function takes any C-contiguous buffer (bytes, memoryview, numpy array) without copying it and
releases the GIL. Nothing here knows of checkpoints, stores or engines.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from native import _core
from native._core import DecodeError
from native.encode import EncodedDelta, encode_delta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from native.buffers import BufferLike

__all__ = [
    "DEFAULT_WINDOW_BYTES_MAX",
    "DecodeError",
    "EncodedDelta",
    "SparseXor",
    "adler32",
    "adler32_add",
    "adler32_combine",
    "adler32_correction",
    "decode_sparse",
    "encode_delta",
    "map_positions",
    "xor_count_adler",
]

DEFAULT_WINDOW_BYTES_MAX = 128 << 20
"""What zstd's own streaming decoder accepts by default (window log 27)."""


class SparseXor(NamedTuple):
    """The elements of one tensor that change, and how.

    positions: element positions, ascending; uint32 if the tensor has at most 2**32 bytes, else uint64.
    masks: XOR of old and new element, never 0; little-endian unsigned integers of the element's size.
    """

    positions: NDArray[Any]
    masks: NDArray[Any]


def decode_sparse(
    payload: BufferLike,
    size_bytes: int,
    element_size: int,
    *,
    max_window_bytes: int = DEFAULT_WINDOW_BYTES_MAX,
) -> SparseXor:
    """Decodes a tensor's delta: concatenated zstd frames (RFC 8878) whose content is parent XOR new.

    size_bytes is the tensor's length, element_size 1, 2, 4 or 8 bytes. Content checksums of frames are
    not verified: the Adler-32 of the new bytes is the verdict.
    Raises DecodeError (a ValueError) with the byte offset in the payload if the payload is malformed,
    truncated or followed by other bytes, decodes to another length than size_bytes, needs a dictionary,
    or a frame's window is larger than max_window_bytes (at most 2**30); or if size_bytes is no multiple
    of element_size.
    """
    return SparseXor(*_core.decode_sparse(payload, size_bytes, element_size, max_window_bytes))


def adler32(data: BufferLike, value: int = 1) -> int:
    """Adler-32 (RFC 1950) of data, continuing value; equal to zlib.adler32."""
    return _core.adler32(data, value)


def adler32_combine(first: int, second: int, second_size_bytes: int) -> int:
    """Adler-32 of two concatenated parts from their checksums and the second part's length."""
    return _core.adler32_combine(first, second, second_size_bytes)


def adler32_add(checksum: int, *corrections: int) -> int:
    """Component-wise sum modulo 65521 of a packed checksum and any number of packed corrections."""
    return reduce(_core.adler32_add, corrections, checksum)


def adler32_correction(positions: BufferLike, old: BufferLike, new: BufferLike, size_bytes: int) -> int:
    """What changing elements adds to a tensor's Adler-32, packed as B << 16 | A; apply it with adler32_add.

    positions: element positions (32- or 64-bit integers, any order, each once) in a tensor of size_bytes
    bytes;
    old, new: its elements there before and after, two arrays of one dtype of 1, 2, 4 or 8 bytes.
    """
    return _core.adler32_correction(positions, old, new, size_bytes)


def xor_count_adler(parent: BufferLike, new: BufferLike, out: BufferLike, element_size: int) -> tuple[int, int]:
    """Writes parent XOR new to out (which may be either of them) in one pass over memory.

    The three have equal lengths. Returns (count of changed elements of element_size bytes, Adler-32 of
    new).
    """
    return _core.xor_count_adler(parent, new, out, element_size)


def map_positions(
    positions: BufferLike,
    source_offset: int,
    destination_offset: int,
    extents: Sequence[int],
    source_strides: Sequence[int],
    destination_strides: Sequence[int],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Maps sorted element positions of a checkpoint tensor through one strided box of the layout map.

    Element (i0, i1, ..) of the box is at source_offset + sum(i * source_stride) in the checkpoint tensor
    and at destination_offset + sum(i * destination_stride) in the destination. Dimensions are sorted by
    descending source stride and nested (source_strides[k] >= extents[k + 1] * source_strides[k + 1]).
    Returns, for every position inside the box, its index in positions (uint32) and its destination offset
    (uint32 if every offset of the box fits, else uint64), in the order of positions. Raises ValueError
    for a malformed box.
    """
    return _core.map_positions(
        positions, source_offset, destination_offset, extents, source_strides, destination_strides
    )
