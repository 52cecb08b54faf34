"""The safetensors header, parsed over a buffer without copying the data behind it.

Format: https://github.com/huggingface/safetensors (u64 little-endian header length, JSON header, data).
Stricter than the format asks in nothing but key uniqueness: as in the reference library, the tensors must
cover the data without holes and overlaps, and the header has at most 100 MB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sync.errors import PublicationError, Rejection
from sync.format.strict_json import parse_object

HEADER_LIMIT_BYTES = 100_000_000
LENGTH_PREFIX_BYTES = 8
RANK_LIMIT = 64
"""Most dimensions of a tensor: what numpy and torch can hold."""

DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


class TensorEntry(NamedTuple):
    """One tensor of a header: safetensors dtype, shape, and [start, end) bytes from the file's beginning."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Header:
    """A parsed header: entries in file order, and the free-form `__metadata__`."""

    tensors: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]


def header_length(prefix: bytes | memoryview, file_size_bytes: int) -> int:
    """Length in bytes of the JSON header, from a file's first 8 bytes.

    Raises `PublicationError`: FILE_TRUNCATED if the file cannot hold it, BAD_HEADER above 100 MB.
    """
    if file_size_bytes < LENGTH_PREFIX_BYTES:
        raise PublicationError(
            Rejection.FILE_TRUNCATED,
            f"a safetensors file has at least {LENGTH_PREFIX_BYTES} bytes, found {file_size_bytes}",
        )
    length = int.from_bytes(prefix[:LENGTH_PREFIX_BYTES], "little")
    if length > HEADER_LIMIT_BYTES:
        raise PublicationError(
            Rejection.BAD_HEADER,
            f"the header claims {length} bytes, at most {HEADER_LIMIT_BYTES} are allowed",
        )
    if LENGTH_PREFIX_BYTES + length > file_size_bytes:
        raise PublicationError(
            Rejection.FILE_TRUNCATED,
            f"the header alone claims {LENGTH_PREFIX_BYTES + length} bytes, the file has {file_size_bytes}",
        )
    return length


def parse_header(text: bytes | memoryview, file_size_bytes: int) -> Header:
    """Parse the JSON header `text` (without its length prefix) of a file of `file_size_bytes`.

    Raises `PublicationError`: BAD_HEADER, BAD_OFFSETS (out of range, overlapping, a hole, or not what dtype
    and shape need), FILE_TRUNCATED.
    """
    try:
        parsed = parse_object(bytes(text))
        metadata = _metadata(parsed.pop("__metadata__", {}))
    except ValueError as error:
        raise PublicationError(Rejection.BAD_HEADER, f"cannot parse the header: {error}") from error
    data_start = LENGTH_PREFIX_BYTES + len(text)
    entries = sorted(
        (_entry(name, description, data_start) for name, description in parsed.items()),
        key=lambda entry: (entry.start, entry.end),
    )
    _require_exact_cover(entries, data_start, file_size_bytes)
    return Header(tuple(entries), metadata)


def _metadata(parsed: Any) -> dict[str, str]:
    if not isinstance(parsed, dict) or not all(isinstance(value, str) for value in parsed.values()):
        raise ValueError("__metadata__ must map names to strings")
    return parsed


def _entry(name: str, description: Any, data_start: int) -> TensorEntry:
    def bad(detail: str) -> PublicationError:
        return PublicationError(Rejection.BAD_HEADER, detail, tensor=name)

    if not isinstance(description, dict) or set(description) != {"dtype", "shape", "data_offsets"}:
        raise bad("expected dtype, shape and data_offsets")
    dtype, shape, offsets = description["dtype"], description["shape"], description["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise bad(f"unknown dtype {dtype!r}")
    if not is_shape(shape):
        raise bad(f"shape must be a list of at most {RANK_LIMIT} integers >= 0")
    if not _is_list_of_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise PublicationError(
            Rejection.BAD_OFFSETS,
            f"data_offsets must be [start, end], found {str(offsets)[:80]}",
            tensor=name,
        )
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:
        raise PublicationError(
            Rejection.BAD_OFFSETS,
            f"{dtype} of shape {shape} needs {bits} bits, the offsets hold {offsets[1] - offsets[0]} bytes",
            tensor=name,
        )
    return TensorEntry(name, dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def is_shape(value: Any) -> bool:
    """Whether parsed JSON is a shape: a list of at most `RANK_LIMIT` sizes."""
    return _is_list_of_sizes(value) and len(value) <= RANK_LIMIT


def _is_list_of_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 63 for item in value
    )


def _require_exact_cover(entries: list[TensorEntry], data_start: int, file_size_bytes: int) -> None:
    expected = data_start
    for entry in entries:
        if entry.end > file_size_bytes:
            raise PublicationError(
                Rejection.FILE_TRUNCATED,
                f"the tensor ends at byte {entry.end}, the file has {file_size_bytes}",
                tensor=entry.name,
            )
        if entry.start != expected:
            what = "overlaps the tensor before it" if entry.start < expected else "leaves a hole before it"
            raise PublicationError(
                Rejection.BAD_OFFSETS,
                f"the tensor starts at byte {entry.start} and {what}, expected {expected}",
                tensor=entry.name,
            )
        expected = entry.end
    if expected != file_size_bytes:
        raise PublicationError(
            Rejection.BAD_OFFSETS,
            f"the tensors end at byte {expected}, the file has {file_size_bytes - expected} bytes more",
        )
