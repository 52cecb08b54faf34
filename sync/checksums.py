"""The three checksum formats of the published format, and the digest of a whole file, behind one interface.

Owns how bytes become hexadecimal text. Refuses to own what is compared with what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import blake3
import xxhash

from native import adler32
from sync.types import ChecksumFormat

# Anything that exposes contiguous bytes: bytes, memoryview, numpy array.
Buffer = bytes | bytearray | memoryview


class Hasher(Protocol):
    """A checksum in progress. `update` may be called any number of times; releases the GIL on long input."""

    def update(self, data: Buffer, /) -> object: ...

    def hexdigest(self) -> str: ...


class Adler32:
    """Adler-32 (RFC 1950) as a `Hasher`."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, data: Buffer, /) -> None:
        self._value = adler32(data, self._value)

    def hexdigest(self) -> str:
        return adler32_text(self._value)


def adler32_text(value: int) -> str:
    """The published form of an Adler-32: eight lower-case hexadecimal digits."""
    return f"{value:08x}"


_HASHERS: dict[ChecksumFormat, Callable[[], Hasher]] = {
    ChecksumFormat.ADLER32: Adler32,
    ChecksumFormat.XXH3_128: xxhash.xxh3_128,
    ChecksumFormat.BLAKE3: blake3.blake3,
}


def new_hasher(checksum_format: ChecksumFormat) -> Hasher:
    """A fresh hasher over no bytes yet."""
    return _HASHERS[checksum_format]()


def checksum(checksum_format: ChecksumFormat, data: Buffer) -> str:
    """Lower-case hexadecimal checksum of all of `data`."""
    hasher = new_hasher(checksum_format)
    hasher.update(data)
    return hasher.hexdigest()


def payload_digest(data: Buffer) -> str:
    """xxh3-64 of a whole shard file: 16 lower-case hexadecimal digits, as in `payload_digests`."""
    return xxhash.xxh3_64_hexdigest(data)
