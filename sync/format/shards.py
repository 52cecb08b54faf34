"""One shard file: fetched whole into one buffer, checked, and handed out as views.

Nothing is decoded here, and nothing is copied out of the buffer. The order is fixed: size, bytes, payload
digest, header, and only then tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sync.checksums import payload_digest
from sync.errors import PublicationError, Rejection, printable
from sync.format.safetensors_header import (
    LENGTH_PREFIX_BYTES,
    Header,
    TensorEntry,
    header_length,
    parse_header,
)
from sync.stores.base import Store
from sync.types import AnchorManifest, Checksum, ChecksumFormat, DeltaManifest, Manifest

SHARD_LIMIT_BYTES = 256 << 30
"""No shard is larger; a size above it is a broken store, not a model."""
_FOREIGN_ADLER32_PREFIX = "mx.adler32:"


class DeltaTensor(NamedTuple):
    """A changed tensor: its zstd payload (a view into the shard) and the checksum of its new bytes."""

    name: str
    payload: memoryview
    checksum: str


class AnchorTensor(NamedTuple):
    """A tensor of an anchor: safetensors dtype, shape, bytes (a view into the shard), checksum if any."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    checksum: Checksum | None


@dataclass(frozen=True)
class DeltaShard:
    """A delta's shard file, checked. Iterating gives its tensors in file order."""

    file: str
    buffer: memoryview
    tensors: tuple[DeltaTensor, ...]

    def __iter__(self) -> Iterator[DeltaTensor]:
        return iter(self.tensors)


@dataclass(frozen=True)
class AnchorShard:
    """An anchor's file, checked. Iterating gives its tensors in file order."""

    file: str
    buffer: memoryview
    tensors: tuple[AnchorTensor, ...]

    def __iter__(self) -> Iterator[AnchorTensor]:
        return iter(self.tensors)


def fetch_shard(store: Store, manifest: DeltaManifest, file: str) -> DeltaShard:
    """Fetch and check one file of a delta.

    Raises `PublicationError`: FILE_MISSING, FILE_TRUNCATED, FILE_TOO_LARGE, PAYLOAD_DIGEST_MISMATCH,
    BAD_HEADER, BAD_OFFSETS, TENSOR_MISSING and UNEXPECTED_TENSOR (file and weight map disagree),
    NOT_A_PAYLOAD (not U8, not 1-D), CHECKSUM_MISSING, BAD_CHECKSUM_TEXT. `StoreError` if the store fails.
    """
    try:
        buffer = _fetch(store, manifest, file)
        header = _header(buffer)
        _require_tensors(header, manifest, file)
        tensors = tuple(_delta_tensor(entry, buffer, header.metadata, manifest) for entry in header.tensors)
    except PublicationError as error:
        raise error.at(version=manifest.version, file=file) from error.__cause__
    return DeltaShard(file, buffer, tensors)


def fetch_anchor_shard(store: Store, manifest: AnchorManifest, file: str) -> AnchorShard:
    """Fetch and check one file of an anchor. Raises as `fetch_shard`, where it applies."""
    try:
        buffer = _fetch(store, manifest, file)
        header = _header(buffer)
        _require_tensors(header, manifest, file)
        tensors = tuple(
            AnchorTensor(
                entry.name,
                entry.dtype,
                entry.shape,
                buffer[entry.start : entry.end],
                _anchor_checksum(entry.name, header.metadata, manifest),
            )
            for entry in header.tensors
        )
    except PublicationError as error:
        raise error.at(version=manifest.version, file=file) from error.__cause__
    return AnchorShard(file, buffer, tensors)


def read_checksums(store: Store, manifest: Manifest) -> dict[str, Checksum]:
    """The checksum of each tensor of a version, as far as published; reads the files' headers only.

    Raises as `fetch_shard` does, where it applies.
    """
    found: dict[str, Checksum] = {}
    for file, tensors in manifest.tensors_of.items():
        try:
            header = _fetch_header(store, manifest.version, file)
            for tensor in tensors:
                if isinstance(manifest, DeltaManifest):
                    text = _delta_checksum(tensor, header.metadata, manifest.checksum_format)
                    found[tensor] = Checksum(manifest.checksum_format, text)
                elif (known := _anchor_checksum(tensor, header.metadata, manifest)) is not None:
                    found[tensor] = known
        except PublicationError as error:
            raise error.at(version=manifest.version, file=file) from error.__cause__
    return found


def _fetch(store: Store, manifest: Manifest, file: str) -> memoryview:
    buffer = np.empty(_shard_size(store, manifest.version, file), np.uint8).data
    store.read_into(manifest.version, file, buffer)
    expected = manifest.payload_digests.get(file)
    if expected is not None and (found := payload_digest(buffer)) != expected:
        raise PublicationError(
            Rejection.PAYLOAD_DIGEST_MISMATCH,
            f"the file's xxh3-64 is {found} over {len(buffer)} bytes, the index says {expected}",
        )
    return buffer


def _shard_size(store: Store, version: int, file: str) -> int:
    size_bytes = store.size(version, file)
    if size_bytes is None:
        raise PublicationError(Rejection.FILE_MISSING, f"the index names it, but it is not in {store.url}")
    if size_bytes > SHARD_LIMIT_BYTES:
        raise PublicationError(
            Rejection.FILE_TOO_LARGE,
            f"the file has {size_bytes} bytes, at most {SHARD_LIMIT_BYTES} are allowed",
        )
    return size_bytes


def _header(buffer: memoryview) -> Header:
    length = header_length(buffer, len(buffer))
    return parse_header(buffer[LENGTH_PREFIX_BYTES : LENGTH_PREFIX_BYTES + length], len(buffer))


def _fetch_header(store: Store, version: int, file: str) -> Header:
    size_bytes = _shard_size(store, version, file)
    prefix = memoryview(bytearray(min(LENGTH_PREFIX_BYTES, size_bytes)))
    store.read_into(version, file, prefix)
    text = memoryview(bytearray(header_length(prefix, size_bytes)))
    store.read_into(version, file, text, offset=LENGTH_PREFIX_BYTES)
    return parse_header(text, size_bytes)


def _require_tensors(header: Header, manifest: Manifest, file: str) -> None:
    expected = set(manifest.tensors_of[file])
    found = {entry.name for entry in header.tensors}
    if missing := sorted(expected - found):
        raise PublicationError(
            Rejection.TENSOR_MISSING,
            f"{len(missing)} of {len(expected)} tensors that the index places in this file are not in it: "
            f"{_some(missing)}",
        )
    if unexpected := sorted(found - expected):
        raise PublicationError(
            Rejection.UNEXPECTED_TENSOR,
            f"{len(unexpected)} tensors are in the file without the index saying so: {_some(unexpected)}",
        )


def _delta_tensor(
    entry: TensorEntry, buffer: memoryview, metadata: Mapping[str, str], manifest: DeltaManifest
) -> DeltaTensor:
    if entry.dtype != "U8" or len(entry.shape) != 1:
        raise PublicationError(
            Rejection.NOT_A_PAYLOAD,
            f"must be U8 with one dimension in a delta, found {entry.dtype} {list(entry.shape)}",
            tensor=entry.name,
        )
    text = _delta_checksum(entry.name, metadata, manifest.checksum_format)
    return DeltaTensor(entry.name, buffer[entry.start : entry.end], text)


def _delta_checksum(tensor: str, metadata: Mapping[str, str], checksum_format: ChecksumFormat) -> str:
    text = metadata.get(tensor)
    if text is None:
        raise PublicationError(
            Rejection.CHECKSUM_MISSING, "the file's __metadata__ has no checksum for it", tensor=tensor
        )
    return _well_formed(tensor, text, checksum_format)


def _anchor_checksum(tensor: str, metadata: Mapping[str, str], manifest: AnchorManifest) -> Checksum | None:
    if (text := metadata.get(tensor)) is not None:
        return Checksum(manifest.checksum_format, _well_formed(tensor, text, manifest.checksum_format))
    if (text := metadata.get(_FOREIGN_ADLER32_PREFIX + tensor)) is not None:
        return Checksum(ChecksumFormat.ADLER32, _well_formed(tensor, text, ChecksumFormat.ADLER32))
    return None


def _well_formed(tensor: str, text: str, checksum_format: ChecksumFormat) -> str:
    if not checksum_format.is_well_formed(text):
        raise PublicationError(
            Rejection.BAD_CHECKSUM_TEXT,
            f"a {checksum_format.value} checksum has {checksum_format.hex_digits} lower-case hex digits, "
            f"found {text[:80]!r}",
            tensor=tensor,
        )
    return text


def _some(names: list[str]) -> str:
    return ", ".join(map(printable, names[:5])) + (", ..." if len(names) > 5 else "")
