from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from native.buffers import BufferLike

class DecodeError(ValueError): ...

def decode_sparse(
    payload: BufferLike, size_bytes: int, element_size: int, max_window_bytes: int
) -> tuple[NDArray[Any], NDArray[Any]]: ...
def adler32(data: BufferLike, value: int) -> int: ...
def adler32_combine(first: int, second: int, second_size_bytes: int) -> int: ...
def adler32_add(left: int, right: int) -> int: ...
def adler32_correction(positions: BufferLike, old: BufferLike, new: BufferLike, size_bytes: int) -> int: ...
def xor_count_adler(
    parent: BufferLike, new: BufferLike, out: BufferLike, element_size: int
) -> tuple[int, int]: ...
def map_positions(
    positions: BufferLike,
    source_offset: int,
    destination_offset: int,
    extents: Sequence[int],
    source_strides: Sequence[int],
    destination_strides: Sequence[int],
) -> tuple[NDArray[Any], NDArray[Any]]: ...
