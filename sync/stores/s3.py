"""A policy store in an S3 bucket (or anything that speaks S3 with conditional writes).

Endpoint, region and keys come from the ordinary AWS environment; they are never logged. Reads go straight
into the caller's buffer by parallel ranges; the pointer moves by conditional puts.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from sync.errors import StoreError
from sync.stores.base import POINTER_LIMIT_BYTES, RANGE_THREADS, parse_pointer, read_ranges
from sync.types import INDEX_FILE, POINTER_FILE, parse_version_directory, version_directory

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import PutObjectRequestTypeDef

_Result = TypeVar("_Result")

_BODY_ATTEMPTS = 4
"""botocore retries requests, but not a body that breaks off half way; ranges do."""
_BODY_FAILURES = (ResponseStreamingError, ReadTimeoutError, IncompleteReadError)
_POINTER_ATTEMPTS = 20
_SINGLE_PUT_LIMIT_BYTES = 64 << 20
_MISSING_CODES = frozenset({"404", "NoSuchKey", "NotFound"})
_CONFLICT_CODES = frozenset({"412", "PreconditionFailed", "409", "ConditionalRequestConflict"})


class S3Store:
    """`Store` over `s3://bucket/prefix`. See `sync.stores.base.Store`.

    Needs s3:ListBucket and s3:GetObject; a publisher s3:PutObject as well. `publish` and `write_new` need a
    server that honours `If-Match` and `If-None-Match` on PUT (AWS since 2024-11, MinIO, SeaweedFS, ...).
    """

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._threads = ThreadPoolExecutor(RANGE_THREADS, thread_name_prefix="store-read")
        with self._as_store_error():
            # A session of its own: boto3's shared one keeps the first credentials that it saw.
            self._client: S3Client = boto3.Session().client(
                "s3",
                config=Config(
                    max_pool_connections=2 * RANGE_THREADS,
                    connect_timeout=10,
                    read_timeout=60,
                    retries={"mode": "standard", "max_attempts": 5},
                    # Ranges carry no checksum of the whole; payload digests and tensor checksums do the work.
                    response_checksum_validation="when_required",
                    request_checksum_calculation="when_required",
                ),
            )

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def latest(self) -> int | None:
        pointer = self._pointer()
        return pointer[0] if pointer else max(self.versions(), default=None)

    def versions(self) -> list[int]:
        suffix = f"/{INDEX_FILE}"
        keys = (key for key, _ in self._list(f"{self._prefix}weight_v") if key.endswith(suffix))
        found = (parse_version_directory(key[len(self._prefix) : -len(suffix)]) for key in keys)
        return sorted(version for version in found if version is not None)

    def files(self, version: int) -> Mapping[str, int]:
        directory = self._key(version, "")
        return {
            key[len(directory) :]: size_bytes
            for key, size_bytes in self._list(directory)
            if not key.endswith("/")  # a "folder" that a console made
        }

    def size(self, version: int, file: str) -> int | None:
        key = self._key(version, file)
        with self._as_store_error():
            head = _or_none(lambda: self._client.head_object(Bucket=self._bucket, Key=key))
        return None if head is None else head["ContentLength"]

    def read_small(self, version: int, file: str, *, limit_bytes: int) -> bytes | None:
        found = self._get(self._key(version, file), limit_bytes)
        return None if found is None else found[0]

    def read_into(self, version: int, file: str, buffer: memoryview, *, offset: int = 0) -> None:
        key = self._key(version, file)

        def read(start: int, part: memoryview) -> None:
            if len(part):
                self._read_range(key, offset + start, part)

        with self._as_store_error():
            read_ranges(self._threads, buffer, read)

    def write(self, version: int, file: str, data: memoryview) -> None:
        key = self._key(version, file)
        with self._as_store_error():
            if len(data) <= _SINGLE_PUT_LIMIT_BYTES:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=_as_file(data))
            else:
                # In parts, several at a time; the object appears only when all have arrived.
                self._client.upload_fileobj(_as_file(data), self._bucket, key)

    def write_new(self, version: int, file: str, data: memoryview) -> bool:
        if self._put_if(self._key(version, file), data, etag=None):
            return True
        # A put whose answer was lost is repeated by botocore, and then meets its own success.
        return self.read_small(version, file, limit_bytes=len(data)) == bytes(data)

    def publish(self, version: int) -> int:
        text = memoryview(version_directory(version).encode())
        for attempt in range(_POINTER_ATTEMPTS):
            current = self._pointer()
            if current is not None and current[0] >= version:
                return current[0]
            etag = None if current is None else current[1]
            if self._put_if(self._prefix + POINTER_FILE, text, etag=etag):
                return version
            time.sleep(min(0.01 * 2**attempt, 0.5))
        raise StoreError(
            f"policy store {self.url}: the pointer could not be moved to version {version}: each of "
            f"{_POINTER_ATTEMPTS} conditional writes met another writer"
        )

    def close(self) -> None:
        self._threads.shutdown()
        self._client.close()

    def _key(self, version: int, file: str) -> str:
        return f"{self._prefix}{version_directory(version)}/{file}"

    def _pointer(self) -> tuple[int, str] | None:
        """Version and ETag of the pointer."""
        found = self._get(self._prefix + POINTER_FILE, POINTER_LIMIT_BYTES)
        return None if found is None else (parse_pointer(found[0], self.url), found[1])

    def _list(self, prefix: str) -> Iterator[tuple[str, int]]:
        with self._as_store_error():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            for page in pages:
                for item in page.get("Contents", []):
                    yield item["Key"], item["Size"]

    def _get(self, key: str, limit_bytes: int) -> tuple[bytes, str] | None:
        """Content (up to one byte more than the limit) and ETag of an object."""

        def get() -> tuple[bytes, str]:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
            with contextlib.closing(answer["Body"]) as body:
                # StreamingBody.read(n) may return fewer than n bytes, and then verifies nothing.
                parts, missing_bytes = [], limit_bytes + 1
                while missing_bytes and (part := body.read(missing_bytes)):
                    parts.append(part)
                    missing_bytes -= len(part)
            return b"".join(parts), answer["ETag"]

        with self._as_store_error():
            return _or_none(lambda: _retry_body(get))

    def _read_range(self, key: str, start: int, part: memoryview) -> None:
        def get() -> None:
            answer = self._client.get_object(
                Bucket=self._bucket, Key=key, Range=f"bytes={start}-{start + len(part) - 1}"
            )
            with contextlib.closing(answer["Body"]) as body:
                filled = 0
                while filled < len(part) and (count := body.readinto(cast(Any, part[filled:]))):
                    filled += count
            if filled < len(part):
                raise StoreError(
                    f"policy store {self.url}: {key} ended after {start + filled} bytes, expected at least "
                    f"{start + len(part)}: it was replaced while being read"
                )

        _retry_body(get)

    def _put_if(self, key: str, data: memoryview, *, etag: str | None) -> bool:
        """Put if the object still has `etag` (None: still does not exist). False if it is not so."""
        request: PutObjectRequestTypeDef = {"Bucket": self._bucket, "Key": key, "Body": bytes(data)}
        if etag is None:
            request["IfNoneMatch"] = "*"
        else:
            request["IfMatch"] = etag
        with self._as_store_error():
            try:
                self._client.put_object(**request)
            except ClientError as error:
                # 404 on If-Match: the pointer was deleted meanwhile; look again like any other conflict.
                if _code(error) in _CONFLICT_CODES or (etag is not None and _code(error) in _MISSING_CODES):
                    return False
                raise
        return True

    @contextlib.contextmanager
    def _as_store_error(self) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            # botocore's messages name operation, bucket, endpoint and code, but no key material.
            raise StoreError(f"policy store {self.url}: {error}") from error


class _BufferReader(io.RawIOBase):
    """A seekable file over a memoryview, so that an upload copies nothing more than it sends."""

    def __init__(self, data: memoryview) -> None:
        self._data = data.cast("B")
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._data)}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = self._data[self._position : self._position + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)


def _as_file(data: memoryview) -> IO[bytes]:
    return cast(IO[bytes], _BufferReader(data))


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def _or_none(get: Callable[[], _Result]) -> _Result | None:
    """`get()`, or None if the object does not exist. A bucket that does not exist stays an error."""
    try:
        return get()
    except ClientError as error:
        if _code(error) in _MISSING_CODES:
            return None
        raise


def _retry_body(get: Callable[[], _Result]) -> _Result:
    for attempt in range(1, _BODY_ATTEMPTS):
        try:
            return get()
        except _BODY_FAILURES:
            time.sleep(0.1 * 2**attempt)
    return get()
