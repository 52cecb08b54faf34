"""The native core: sparse decoding of zstd-compressed XOR deltas, Adler-32, layout mapping, delta encoding.

Every function takes any C-contiguous buffer (bytes, memoryview, numpy array) without copying it and
releases the GIL. Nothing here knows of checkpoints, stores or engines.

decode.py    payload -> positions and XOR masks: one, many on several threads, or one still arriving
encode.py    parent and new bytes -> payload
memory.py    gather, scatter and group scattered elements of plain memory
bench/       `python -m native.bench`: against libzstd and Python, and at GLM-5.3's scale
zstd/        the decoder in C++, a file for each part of RFC 8878; block_decoder_*.cpp compile it once for each
             instruction set, and cpu.hpp chooses when the process starts
checksum/, kernels/   the other loops in C++; binding/ shows them to Python
fuzz/        `native/fuzz/run.sh`: coverage-guided, under sanitizers, against libzstd
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from native import _core
from native._core import DecodeError
from native.decode import (
    DEFAULT_WINDOW_BYTES_MAX,
    DecodedJob,
    DecodeJob,
    SparseXor,
    StreamDecoder,
    decode_many,
    decode_sparse,
)
from native.encode import EncodedDelta, encode_delta
from native.memory import (
    GatheredXor,
    Grouped,
    counting_sort,
    gather,
    gather_xor,
    prefer_huge_pages,
    scatter,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from native.buffers import BufferLike

__all__ = [
    "DEFAULT_WINDOW_BYTES_MAX",
    "DecodeError",
    "DecodeJob",
    "DecodedJob",
    "EncodedDelta",
    "GatheredXor",
    "Grouped",
    "SparseXor",
    "StreamDecoder",
    "adler32",
    "adler32_add",
    "adler32_combine",
    "adler32_correction",
    "counting_sort",
    "decode_many",
    "decode_sparse",
    "encode_delta",
    "gather",
    "gather_xor",
    "map_positions",
    "prefer_huge_pages",
    "scatter",
    "xor_count_adler",
]


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
