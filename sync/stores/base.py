"""The `Store` port: where policy versions are published and read.

A store knows version directories, files and the pointer `latest`; what the files mean is `sync.format`'s
business. Nothing is ever deleted through a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from sync.errors import PublicationError, Rejection
from sync.types import parse_version_directory

RANGE_BYTES = 16 << 20
"""Size of one ranged read. With `RANGE_THREADS` of them in flight this measured best on loopback S3."""
RANGE_THREADS = 8
POINTER_LIMIT_BYTES = 256


class Store(Protocol):
    """A directory or bucket prefix that holds `weight_vNNNNNN/` directories and the pointer `latest`.

    Every method raises `StoreError` if the store cannot be reached or refuses. `file` is a relative path
    with `/` between its parts. Methods may be called from several threads.
    """

    @property
    def url(self) -> str:
        """Where this is, for messages. Holds no credentials."""

    def latest(self) -> int | None:
        """The version that the pointer names; without a pointer, the highest version whose index exists.

        None if nothing is published. Raises `PublicationError` if the pointer's text cannot be parsed: a
        pointer that means nothing is never guessed at.
        """

    def versions(self) -> list[int]:
        """All versions whose index exists, ascending."""

    def files(self, version: int) -> Mapping[str, int]:
        """Path -> size in bytes of each file in the version directory; empty if there is none."""

    def size(self, version: int, file: str) -> int | None:
        """Size of a file in bytes, or None if it does not exist."""

    def read_small(self, version: int, file: str, *, limit_bytes: int) -> bytes | None:
        """A whole file in one read, None if it does not exist.

        At most `limit_bytes + 1` bytes are read: a result longer than `limit_bytes` says only that the file
        is too large.
        """

    def read_into(self, version: int, file: str, buffer: memoryview, *, offset: int = 0) -> None:
        """Fill all of `buffer` (writable, one byte an item) from the file's bytes at `offset`.

        Long reads are split into ranges of 16 MiB on 8 threads. Raises `StoreError` if the file ends early.
        """

    def write(self, version: int, file: str, data: memoryview) -> None:
        """Write a file whole: a reader sees the old file, or the new one, never a part."""

    def write_new(self, version: int, file: str, data: memoryview) -> bool:
        """As `write`, but only if the file does not exist yet; False (and nothing written) if it does."""

    def publish(self, version: int) -> int:
        """Move the pointer to `version` unless it names a higher one. Returns what it names afterwards.

        Atomic against other publishers: of two racing calls the higher version wins, in any order.
        """

    def close(self) -> None:
        """Release threads and connections. The store must not be used afterwards."""


def parse_pointer(text: bytes, url: str) -> int:
    """`b"weight_v000007"` -> 7; white space around it is allowed.

    Raises `PublicationError` (BAD_POINTER) for anything else.
    """
    version = parse_version_directory(text.strip().decode("ascii", errors="replace"))
    if version is None:
        raise PublicationError(
            Rejection.BAD_POINTER,
            f"the pointer {url}/latest must read weight_v and six digits (weight_v000007), found "
            f"{text[:40]!r}; publish a version again, or put the right name in by hand",
        )
    return version


def read_ranges(threads: ThreadPoolExecutor, buffer: memoryview, read: Callable[[int, memoryview], None]) -> None:
    """Fill `buffer` by `read(offset, part)` over parts of `RANGE_BYTES`, on `threads` if there are several.

    The first failure is raised, after all running parts ended: nobody writes to the buffer afterwards.
    """
    offsets = range(0, len(buffer), RANGE_BYTES)
    if len(offsets) <= 1:
        read(0, buffer)
        return
    parts = [threads.submit(read, start, buffer[start : start + RANGE_BYTES]) for start in offsets]
    failures: list[BaseException] = []
    for part in parts:
        if failures:
            part.cancel()
        if not part.cancelled() and (failure := part.exception()) is not None:
            failures.append(failure)
    if failures:
        raise failures[0]
