"""The zstd payload of one changed tensor, decoded densely by libzstd, with every bound checked first.

This is the readable reference: `rollout-publish verify` and the overwrite encoding use it.
The serving path decodes XOR payloads sparsely in `native` instead.
Frame layout: RFC 8878, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from sync.checksums import Buffer
from sync.errors import PublicationError, Rejection

WINDOW_LIMIT_BYTES = 128 << 20
"""Largest window that a frame may ask for: what `zstd` itself allows by default (`--memory` at 27)."""

_MAGIC = b"\x28\xb5\x2f\xfd"
_LONGEST_FRAME_HEADER_BYTES = 18
_RLE_BLOCK, _RESERVED_BLOCK = 1, 3


class Frame(NamedTuple):
    """One zstd frame inside a payload: its bytes, and its content's size if the header tells."""

    data: memoryview
    content_size_bytes: int | None


class Overwrite(NamedTuple):
    """A decoded overwrite payload: strictly ascending byte positions, and the new byte at each."""

    positions: npt.NDArray[np.uint32]
    values: npt.NDArray[np.uint8]


def decode_xor(payload: Buffer, tensor_size_bytes: int) -> npt.NDArray[np.uint8]:
    """The dense XOR of one tensor: uint8, shape (tensor_size_bytes,).

    Raises `PublicationError`: BAD_FRAME, NEEDS_DICTIONARY, WINDOW_TOO_LARGE, TRAILING_BYTES, WRONG_LENGTH.
    """
    dense = np.empty(tensor_size_bytes, np.uint8)
    filled = 0
    for content in decompress_frames(payload, tensor_size_bytes):
        dense[filled : filled + len(content)] = np.frombuffer(content, np.uint8)
        filled += len(content)
    if filled != tensor_size_bytes:
        raise PublicationError(Rejection.WRONG_LENGTH, f"decoded to {filled} bytes, the tensor has {tensor_size_bytes}")
    return dense


def decode_overwrite(payload: Buffer, tensor_size_bytes: int) -> Overwrite:
    """Byte positions and new bytes of an overwrite payload.

    Positions may come in any order (public trainers write them ascending) and are returned ascending, their
    values with them. A position that appears twice is rejected, whether or not its two values agree: which
    one counts would depend on the reader.

    Raises `PublicationError`: BAD_OVERWRITE, and the rejections of `decode_xor`.
    """
    limit_bytes = 4 + 5 * tensor_size_bytes
    content = b"".join(decompress_frames(payload, limit_bytes))
    if len(content) < 4:
        raise PublicationError(Rejection.BAD_OVERWRITE, f"decoded to {len(content)} bytes, too short for a count")
    count = int.from_bytes(content[:4], "little")
    if len(content) != 4 + 5 * count:
        raise PublicationError(
            Rejection.BAD_OVERWRITE,
            f"{count} changed bytes need {4 + 5 * count} bytes, decoded to {len(content)}",
        )
    positions = np.frombuffer(content, "<u4", count, offset=4).astype(np.uint32, copy=False)
    values = np.frombuffer(content, np.uint8, count, offset=4 + 4 * count)
    if not (positions[1:] > positions[:-1]).all():
        order = np.argsort(positions, kind="stable")
        positions, values = positions[order], values[order]
        repeated = positions[1:][positions[1:] == positions[:-1]]
        if repeated.size:
            raise PublicationError(Rejection.BAD_OVERWRITE, f"byte position {repeated[0]} appears more than once")
    if count and positions[-1] >= tensor_size_bytes:
        raise PublicationError(
            Rejection.BAD_OVERWRITE,
            f"byte position {positions[-1]} is beyond the tensor's {tensor_size_bytes} bytes",
        )
    return Overwrite(positions, values)


def decompress_frames(payload: Buffer, limit_bytes: int) -> Iterator[bytes]:
    """The content of each frame in turn, at most `limit_bytes` altogether; checked before it is decompressed.

    Raises as `decode_xor` does (WRONG_LENGTH for more than `limit_bytes`).
    """
    decompressor = zstandard.ZstdDecompressor()
    left_bytes = limit_bytes
    for frame in walk_frames(payload):
        if frame.content_size_bytes is not None and frame.content_size_bytes > left_bytes:
            raise _too_long(limit_bytes)
        if frame.content_size_bytes == 0:
            continue
        try:
            content: bytes = (
                # Without a content size in the header, one byte more than allowed tells that it is too long.
                decompressor.stream_reader(frame.data).read(left_bytes + 1)
                if frame.content_size_bytes is None
                else decompressor.decompress(frame.data)
            )
        except zstandard.ZstdError as error:
            raise PublicationError(
                Rejection.BAD_FRAME, f"a zstd frame of {len(frame.data)} bytes does not decode: {error}"
            ) from error
        if len(content) > left_bytes:
            raise _too_long(limit_bytes)
        left_bytes -= len(content)
        yield content


def walk_frames(payload: Buffer) -> Iterator[Frame]:
    """The frames of a payload, found by their block headers; skippable frames are skipped.

    Raises `PublicationError`: BAD_FRAME (none at all, or cut off), NEEDS_DICTIONARY, WINDOW_TOO_LARGE,
    TRAILING_BYTES.
    """
    rest = memoryview(payload)
    found = False
    while len(rest):
        if _is_skippable(rest):
            end = 8 + int.from_bytes(rest[4:8], "little")
        elif rest[:4] == _MAGIC:
            found = True
            end, frame = _measure(rest)
            yield frame
        else:
            raise PublicationError(
                Rejection.TRAILING_BYTES if found else Rejection.BAD_FRAME,
                f"{len(rest)} bytes {'after the last frame' if found else 'that'} are not a zstd frame",
            )
        if end > len(rest):
            raise _cut_off(end, len(rest))
        rest = rest[end:]
    if not found:
        raise PublicationError(Rejection.BAD_FRAME, "the payload holds no zstd frame")


def _is_skippable(rest: memoryview) -> bool:
    return len(rest) >= 8 and rest[0] >> 4 == 5 and bytes(rest[1:4]) == b"\x2a\x4d\x18"


def _measure(rest: memoryview) -> tuple[int, Frame]:
    """Length in bytes of the frame at the start of `rest`, and the frame."""
    head = bytes(rest[:_LONGEST_FRAME_HEADER_BYTES])
    try:
        parameters = zstandard.get_frame_parameters(head)
        end = zstandard.frame_header_size(head)
    except zstandard.ZstdError as error:
        raise PublicationError(Rejection.BAD_FRAME, f"bad zstd frame header: {error}") from error
    if parameters.dict_id:
        raise PublicationError(
            Rejection.NEEDS_DICTIONARY, f"a zstd frame needs dictionary {parameters.dict_id}; none is allowed"
        )
    if parameters.window_size > WINDOW_LIMIT_BYTES:
        raise PublicationError(
            Rejection.WINDOW_TOO_LARGE,
            f"a zstd frame needs a window of {parameters.window_size} bytes, allowed are {WINDOW_LIMIT_BYTES}",
        )
    is_last = False
    while not is_last:
        if end + 3 > len(rest):
            raise _cut_off(end + 3, len(rest))
        block = int.from_bytes(rest[end : end + 3], "little")
        is_last, kind, size_bytes = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED_BLOCK:
            raise PublicationError(Rejection.BAD_FRAME, f"reserved zstd block type at byte {end} of a frame")
        end += 3 + (1 if kind == _RLE_BLOCK else size_bytes)
    end += 4 if parameters.has_checksum else 0
    if end > len(rest):
        raise _cut_off(end, len(rest))
    unknown = parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN
    return end, Frame(rest[:end], None if unknown else parameters.content_size)


def _cut_off(needed_bytes: int, found_bytes: int) -> PublicationError:
    return PublicationError(
        Rejection.BAD_FRAME,
        f"a zstd frame is cut off: it needs at least {needed_bytes} bytes, found {found_bytes}",
    )


def _too_long(limit_bytes: int) -> PublicationError:
    return PublicationError(Rejection.WRONG_LENGTH, f"decodes to more than the expected {limit_bytes} bytes")
