"""Sparse decoding of deltas: one payload, many on several threads, or one that is still arriving."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from native import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from native.buffers import BufferLike

DEFAULT_WINDOW_BYTES_MAX = 128 << 20
"""What zstd's own streaming decoder accepts by default (window log 27)."""


class SparseXor(NamedTuple):
    """The elements of one tensor that change, and how.

    positions: element positions, ascending; uint32 if the tensor has at most 2**32 bytes, else uint64.
    masks: XOR of old and new element, never 0; little-endian unsigned integers of the element's size.
    """

    positions: NDArray[Any]
    masks: NDArray[Any]


class DecodeJob(NamedTuple):
    """One tensor's delta: its name (for errors), payload, length in bytes and element size (1, 2, 4 or 8)."""

    name: str
    payload: BufferLike
    size_bytes: int
    element_size: int


class DecodedJob(NamedTuple):
    """A tensor's sparse XOR, and how many of its frames' content checksums were and were not verified."""

    xor: SparseXor
    verified_checksums: int
    unverified_checksums: int


def decode_sparse(
    payload: BufferLike,
    size_bytes: int,
    element_size: int,
    *,
    max_window_bytes: int = DEFAULT_WINDOW_BYTES_MAX,
) -> SparseXor:
    """Decodes a tensor's delta: concatenated zstd frames (RFC 8878) whose content is parent XOR new.

    size_bytes is the tensor's length, element_size 1, 2, 4 or 8 bytes. A frame's content checksum is only
    verified where nonzero bytes are so many that all of the frame is decoded densely: the Adler-32 of the new
    bytes is the verdict.
    Memory beyond input and output: at most 1 MiB, whatever the window and however many bytes are nonzero. The process
    keeps up to 8 MiB of results that were dropped, for the next ones.
    Raises DecodeError (a ValueError) with the byte offset in the payload if the payload is malformed,
    truncated or followed by other bytes, decodes to another length than size_bytes, needs a dictionary, or a
    frame's window is larger than max_window_bytes (at most 2**30); or if size_bytes is no multiple of
    element_size.
    """
    return SparseXor(*_core.decode_sparse(payload, size_bytes, element_size, max_window_bytes))


def decode_many(
    jobs: Sequence[DecodeJob],
    *,
    threads: int | None = None,
    reserve_cores: int = 0,
    niceness: int = 10,
    max_window_bytes: int = DEFAULT_WINDOW_BYTES_MAX,
) -> list[DecodedJob]:
    """Decodes many tensors, as decode_sparse does each; frames of one tensor are decoded in parallel too.

    threads: by default all cores that this process may use but reserve_cores, at least one. They run with
    niceness added to this process's own (0 to 19), so that serving comes first.
    Raises DecodeError with the name of the first job that fails; no result is returned then.
    """
    if threads is None:
        threads = len(os.sched_getaffinity(0)) - reserve_cores
    decoded = _core.decode_many(jobs, max(1, threads), niceness, max_window_bytes)
    return [
        DecodedJob(SparseXor(positions, masks), verified, unverified)
        for positions, masks, verified, unverified in decoded
    ]


class StreamDecoder:
    """Decodes a payload while it arrives in a buffer that has its final length already.

    Blocks are decoded once they are complete, so what is left after the last byte is little. The buffer must
    not move or shrink, and bytes counted as available must not change.
    """

    def __init__(
        self,
        payload: BufferLike,
        size_bytes: int,
        element_size: int,
        *,
        max_window_bytes: int = DEFAULT_WINDOW_BYTES_MAX,
    ) -> None:
        self._decoder = _core.StreamDecoder(payload, size_bytes, element_size, max_window_bytes)

    def advance(self, available_bytes: int) -> int:
        """Decodes every complete block of the first available_bytes; returns the bytes decoded so far.

        Raises DecodeError as soon as a block is malformed; nothing decoded may be used then.
        """
        return self._decoder.advance(available_bytes)

    def finish(self) -> SparseXor:
        """Decodes the rest; once. Raises DecodeError as decode_sparse does."""
        return SparseXor(*self._decoder.finish())
