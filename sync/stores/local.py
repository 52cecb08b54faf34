"""A policy store in a local (or mounted) directory.

Writes are temporary file, fsync, rename. Pointer and new indexes are written under a file lock, so that of two
publishers none moves the pointer back or replaces the other's index.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from sync.errors import StoreError
from sync.stores.base import POINTER_LIMIT_BYTES, RANGE_THREADS, parse_pointer, read_ranges
from sync.types import INDEX_FILE, POINTER_FILE, parse_version_directory, version_directory

LOCK_FILE = ".lock"


class LocalStore:
    """`Store` over a directory. See `sync.stores.base.Store`."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._root = Path(directory).expanduser().absolute()
        self._threads = ThreadPoolExecutor(RANGE_THREADS, thread_name_prefix="store-read")

    @property
    def url(self) -> str:
        return str(self._root)

    def latest(self) -> int | None:
        pointer = self._read(self._root / POINTER_FILE, POINTER_LIMIT_BYTES)
        if pointer is not None:
            return parse_pointer(pointer, self.url)
        return max(self.versions(), default=None)

    def versions(self) -> list[int]:
        with _as_store_error(self.url):
            try:
                names = os.listdir(self._root)
            except FileNotFoundError:
                return []
            found = ((parse_version_directory(name), name) for name in names)
            return sorted(
                version for version, name in found if version is not None and (self._root / name / INDEX_FILE).is_file()
            )

    def files(self, version: int) -> Mapping[str, int]:
        directory = self._root / version_directory(version)
        with _as_store_error(self.url):
            return {
                path.relative_to(directory).as_posix(): path.stat().st_size
                for path in sorted(directory.rglob("*"))
                if path.is_file() and not _is_temporary(path.name)
            }

    def size(self, version: int, file: str) -> int | None:
        path = self._path(version, file)
        with _as_store_error(self.url):
            return path.stat().st_size if path.is_file() else None

    def read_small(self, version: int, file: str, *, limit_bytes: int) -> bytes | None:
        return self._read(self._path(version, file), limit_bytes)

    def read_into(self, version: int, file: str, buffer: memoryview, *, offset: int = 0) -> None:
        path = self._path(version, file)
        with _as_store_error(self.url), open(path, "rb", buffering=0) as stream:

            def read(start: int, part: memoryview) -> None:
                filled = 0
                while filled < len(part):
                    count = os.preadv(stream.fileno(), [part[filled:]], offset + start + filled)
                    if count == 0:
                        raise StoreError(
                            f"{path} ended after {offset + start + filled} bytes, expected at least "
                            f"{offset + len(buffer)}: it was cut while being read"
                        )
                    filled += count

            read_ranges(self._threads, buffer, read)

    def write(self, version: int, file: str, data: memoryview) -> None:
        path = self._path(version, file)
        with _as_store_error(self.url):
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, data)

    def write_new(self, version: int, file: str, data: memoryview) -> bool:
        path = self._path(version, file)
        with _as_store_error(self.url):
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if path.exists():
                    return False
                _replace(path, data)
        return True

    def publish(self, version: int) -> int:
        with _as_store_error(self.url):
            self._root.mkdir(parents=True, exist_ok=True)
            with self._locked():
                text = self._read(self._root / POINTER_FILE, POINTER_LIMIT_BYTES)
                current = None if text is None else parse_pointer(text, self.url)
                if current is not None and current >= version:
                    return current
                _replace(self._root / POINTER_FILE, memoryview(version_directory(version).encode()))
        return version

    def close(self) -> None:
        self._threads.shutdown()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # A file of its own, opened for writing: NFS locks nothing less.
        with open(self._root / LOCK_FILE, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _path(self, version: int, file: str) -> Path:
        return self._root / version_directory(version) / PurePosixPath(file)

    def _read(self, path: Path, limit_bytes: int) -> bytes | None:
        with _as_store_error(self.url):
            try:
                with open(path, "rb") as stream:
                    return stream.read(limit_bytes + 1)
            except FileNotFoundError:
                return None


@contextlib.contextmanager
def _as_store_error(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"policy store {url}: {error}") from error


@contextlib.contextmanager
def _temporary(path: Path, data: memoryview) -> Iterator[Path]:
    """A finished, synced file beside `path`; removed at the end unless it was renamed away."""
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(name, "xb", buffering=0) as stream:
            written = 0
            while written < len(data):
                written += stream.write(data[written:])
            os.fsync(stream.fileno())
        yield name
    finally:
        name.unlink(missing_ok=True)


def _replace(path: Path, data: memoryview) -> None:
    with _temporary(path, data) as temporary:
        os.replace(temporary, path)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")
