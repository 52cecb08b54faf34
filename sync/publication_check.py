"""Reading a published version completely, as a careful reader would, without an engine.

Decodes densely with libzstd: slower than the serving path, and independent of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sync.checksums import checksum
from sync.errors import PublicationError, Rejection
from sync.format import (
    DeltaTensor,
    decode_overwrite,
    decode_xor,
    fetch_anchor_shard,
    fetch_shard,
    read_manifest,
)
from sync.format.frames import decompress_frames
from sync.format.safetensors_header import DTYPE_BITS
from sync.named_tensors import NamedTensor
from sync.parallel import byte_progress, run_parallel
from sync.stores import Store
from sync.types import AnchorManifest, DeltaEncoding, DeltaManifest

_UNKNOWN_SIZE_LIMIT_BYTES = 64 << 30
"""Bound on a decoded tensor where neither the index nor a parent tells its size."""


@dataclass(frozen=True)
class VersionCheck:
    """What was read and found good."""

    version: int
    kind: str
    base_version: int | None
    files: int
    tensors: int
    file_bytes: int
    decoded_bytes: int
    checksums_verified: int
    """Checksums of new bytes: an anchor's own, or a delta's applied to the parent."""


def check_version(
    store: Store,
    version: int,
    *,
    parent: Mapping[str, NamedTensor] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> VersionCheck:
    """Read everything of `version`: index, digests, headers, payloads. With the parent's tensors, apply the
    delta to them in memory and check the checksums of the new bytes, too.

    Raises `PublicationError` at the first fault, `StoreError`, `ValueError` for a parent of an anchor.
    """
    manifest = read_manifest(store, version)
    if parent is not None and isinstance(manifest, AnchorManifest):
        raise ValueError(f"version {version} is an anchor and has no parent to check it against")
    decoded_bytes, verified, file_bytes = 0, 0, 0
    sizes = store.files(version)
    total_bytes = sum(sizes.get(file, 0) for file in manifest.files)
    with byte_progress(f"version {version}: verify", total_bytes, progress) as advance:
        for file in manifest.files:
            try:
                if isinstance(manifest, DeltaManifest):
                    buffer, results = _check_delta_file(store, manifest, file, parent, threads)
                else:
                    buffer, results = _check_anchor_file(store, manifest, file, threads)
            except PublicationError as error:
                raise error.at(version=version, file=file) from error.__cause__
            file_bytes += len(buffer)
            decoded_bytes += sum(size_bytes for size_bytes, _ in results)
            verified += sum(was_verified for _, was_verified in results)
            advance(len(buffer))
    is_delta = isinstance(manifest, DeltaManifest)
    return VersionCheck(
        version,
        "delta" if is_delta else "anchor",
        manifest.base_version if isinstance(manifest, DeltaManifest) else None,
        len(manifest.files),
        len(manifest.weight_map),
        file_bytes,
        decoded_bytes,
        verified,
    )


def apply_delta(tensor: DeltaTensor, parent: npt.NDArray[np.uint8], manifest: DeltaManifest) -> npt.NDArray[np.uint8]:
    """The new bytes of one tensor: uint8, as long as `parent`, which stays as it is.

    Raises `PublicationError`: WRONG_PARENT where the index tells, CHECKSUM_MISMATCH, and what decoding rejects.
    """
    expected_parent = manifest.parent_checksums.get(tensor.name)
    if expected_parent is not None:
        found = checksum(manifest.checksum_format, parent.data)
        if found != expected_parent:
            raise PublicationError(
                Rejection.WRONG_PARENT,
                f"the parent's {manifest.checksum_format.value} is {found}, the delta was made against "
                f"{expected_parent}",
                tensor=tensor.name,
            )
    if manifest.encoding is DeltaEncoding.XOR:
        new = decode_xor(tensor.payload, parent.nbytes)
        np.bitwise_xor(new, parent, out=new)
    else:
        new = parent.copy()
        positions, values = decode_overwrite(tensor.payload, parent.nbytes)
        new[positions] = values
    found = checksum(manifest.checksum_format, new.data)
    if found != tensor.checksum:
        raise PublicationError(
            Rejection.CHECKSUM_MISMATCH,
            f"the new bytes' {manifest.checksum_format.value} is {found}, published was {tensor.checksum}; the "
            "delta is damaged, or the parent is another one",
            tensor=tensor.name,
        )
    return new


_Results = list[tuple[int, bool]]
"""Of each tensor: decoded bytes, and whether a checksum of its new bytes was verified."""


def _check_delta_file(
    store: Store,
    manifest: DeltaManifest,
    file: str,
    parent: Mapping[str, NamedTensor] | None,
    threads: int | None,
) -> tuple[memoryview, _Results]:
    shard = fetch_shard(store, manifest, file)

    def check(tensor: DeltaTensor) -> tuple[int, bool]:
        try:
            if parent is None:
                return _decoded_size(tensor, manifest), False
            if tensor.name not in parent:
                raise PublicationError(Rejection.UNKNOWN_TENSOR, "the parent has no such tensor")
            return apply_delta(tensor, parent[tensor.name].data, manifest).nbytes, True
        except PublicationError as error:
            raise error.at(tensor=tensor.name) from error.__cause__

    return shard.buffer, run_parallel(threads, shard.tensors, check)


def _check_anchor_file(
    store: Store, manifest: AnchorManifest, file: str, threads: int | None
) -> tuple[memoryview, _Results]:
    shard = fetch_anchor_shard(store, manifest, file)
    with_checksum = [tensor for tensor in shard if tensor.checksum is not None]
    found = run_parallel(
        threads,
        with_checksum,
        lambda tensor: checksum(tensor.checksum.format, tensor.data) if tensor.checksum else "",
    )
    for tensor, text in zip(with_checksum, found, strict=True):
        if tensor.checksum is not None and text != tensor.checksum.text:
            raise PublicationError(
                Rejection.CHECKSUM_MISMATCH,
                f"the tensor's {tensor.checksum.format.value} is {text}, published was {tensor.checksum.text}",
                tensor=tensor.name,
            )
    return shard.buffer, [(len(tensor.data), tensor.checksum is not None) for tensor in shard]


def _decoded_size(tensor: DeltaTensor, manifest: DeltaManifest) -> int:
    size_bytes = _published_size(tensor.name, manifest)
    if manifest.encoding is DeltaEncoding.OVERWRITE:
        limit_bytes = _UNKNOWN_SIZE_LIMIT_BYTES if size_bytes is None else size_bytes
        return decode_overwrite(tensor.payload, limit_bytes).values.nbytes
    if size_bytes is None:
        return sum(len(content) for content in decompress_frames(tensor.payload, _UNKNOWN_SIZE_LIMIT_BYTES))
    return decode_xor(tensor.payload, size_bytes).nbytes


def _published_size(tensor: str, manifest: DeltaManifest) -> int | None:
    if tensor not in manifest.shapes or tensor not in manifest.dtypes:
        return None
    return math.prod(manifest.shapes[tensor]) * DTYPE_BITS[manifest.dtypes[tensor]] // 8
