"""Writing one policy version: shards, then the index. Stateless; `sync.publisher` keeps what lasts over steps.

The order makes a version complete or absent: an index is written last, and only if there is none yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors

from sync.checksums import checksum, payload_digest
from sync.delta_encoding import EncodedTensor, encode_tensor
from sync.errors import PublicationError, Rejection, StoreError
from sync.format.manifest import manifest_text
from sync.named_tensors import DTYPE_NAMES, NamedTensor
from sync.parallel import byte_progress, run_parallel
from sync.stores import Store
from sync.types import INDEX_FILE, AnchorManifest, ChecksumFormat, DeltaEncoding, DeltaManifest, Manifest

_WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack"})


@dataclass(frozen=True)
class PublishOptions:
    """How versions are written. The defaults are what an RL run wants."""

    encoding: DeltaEncoding = DeltaEncoding.XOR
    checksum_format: ChecksumFormat = ChecksumFormat.ADLER32
    """Adler-32 is checked in time proportional to the change; the others need all bytes of a changed tensor."""
    level: int = 5
    """zstd level. 5 is tuned for sparse XOR (smaller than 3, sooner decoded); 1 is what public trainers use."""
    shard_bytes: int = 2 << 30
    """A file is closed when the next tensor would make it longer than this."""
    threads: int | None = None
    """None: one a usable CPU."""
    progress: bool | None = None
    """Show a bar on standard error. None: only on a terminal."""

    def __post_init__(self) -> None:
        if not 1 <= self.level <= 22:
            raise ValueError(f"level must be 1 to 22, not {self.level}")
        if self.shard_bytes < 1:
            raise ValueError(f"shard_bytes must be at least 1, not {self.shard_bytes}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {self.threads}")


@dataclass(frozen=True)
class Published:
    """What one publication wrote. An anchor has no base version and counts every element as changed."""

    version: int
    base_version: int | None
    changed_elements: int
    total_elements: int
    payload_bytes: int
    """Size of the shard files."""
    seconds: float

    @property
    def density(self) -> float:
        """Changed elements over all elements; 0 for a policy without elements."""
        return self.changed_elements / self.total_elements if self.total_elements else 0.0


def write_anchor(
    store: Store,
    tensors: Mapping[str, NamedTensor],
    version: int,
    options: PublishOptions,
    *,
    beside: Path | None = None,
) -> Published:
    """Write a whole policy as version `version`, with each tensor's checksum; the pointer is not moved.

    `beside`: a checkpoint directory whose other files (config, tokenizer, chat template) come along.
    Raises `PublicationError` (ALREADY_PUBLISHED), `StoreError`, and `ValueError` if there is no tensor.
    """
    started = time.monotonic()
    if not tensors:
        raise ValueError("an anchor needs at least one tensor")
    require_unpublished(store, version)
    if beside is not None:
        for path in _companions(beside):
            store.write(version, path.relative_to(beside).as_posix(), memoryview(path.read_bytes()))
    shards = _split({name: tensor.data.nbytes for name, tensor in tensors.items()}, options.shard_bytes)
    writer = _ShardWriter(store, version)
    total_bytes = sum(tensor.data.nbytes for tensor in tensors.values())
    with byte_progress(f"version {version}: anchor", total_bytes, options.progress) as advance:
        for number, names in enumerate(shards, start=1):
            checksums = run_parallel(
                options.threads, names, lambda name: checksum(options.checksum_format, tensors[name].data.data)
            )
            metadata = {"format": "pt", **dict(zip(names, checksums, strict=True))}
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            writer.write(file, {name: tensors[name] for name in names}, metadata)
            advance(sum(tensors[name].data.nbytes for name in names))
    manifest = AnchorManifest(version, writer.weight_map, writer.digests, checksum_format=options.checksum_format)
    _write_index(store, manifest, total_bytes)
    total_elements = sum(tensor.element_count for tensor in tensors.values())
    return Published(version, None, total_elements, total_elements, writer.payload_bytes, time.monotonic() - started)


def write_delta(
    store: Store,
    parent: Mapping[str, NamedTensor],
    new: Mapping[str, NamedTensor],
    version: int,
    base_version: int,
    options: PublishOptions,
) -> tuple[Published, tuple[str, ...]]:
    """Write `new` against `parent` as version `version`; returns also the names of the changed tensors.

    The pointer is not moved. All payloads are held in memory until they are written. Raises `ValueError` if
    the two differ in anything but values, `PublicationError` (ALREADY_PUBLISHED), `StoreError`.
    """
    started = time.monotonic()
    require_same_tensors(parent, new)
    require_unpublished(store, version)
    encoded = _encode(parent, new, version, options)
    total_elements = sum(tensor.element_count for tensor in parent.values())
    changed_elements = sum(tensor.changed_elements for tensor in encoded.values())
    shards = _split({name: len(tensor.payload) for name, tensor in encoded.items()}, options.shard_bytes)
    writer = _ShardWriter(store, version)
    for number, names in enumerate(shards):
        payloads = {name: np.frombuffer(encoded[name].payload, np.uint8) for name in names}
        writer.write(
            f"model-{number:05d}-of-{len(shards):05d}.safetensors",
            {name: NamedTensor("U8", payload.shape, payload) for name, payload in payloads.items()},
            {name: encoded[name].checksum for name in names},
        )
    manifest = DeltaManifest(
        version,
        writer.weight_map,
        writer.digests,
        base_version=base_version,
        encoding=options.encoding,
        checksum_format=options.checksum_format,
        dtypes={name: parent[name].dtype for name in encoded},
        shapes={name: parent[name].shape for name in encoded},
        parent_checksums={name: tensor.parent_checksum for name, tensor in encoded.items()},
        changed_elements=changed_elements,
        total_elements=total_elements,
    )
    _write_index(store, manifest, writer.payload_bytes)
    published = Published(
        version,
        base_version,
        changed_elements,
        total_elements,
        writer.payload_bytes,
        time.monotonic() - started,
    )
    return published, tuple(encoded)


def newest_version(store: Store) -> int | None:
    """The highest complete version; None in an empty store.

    Higher than the pointer's if a publisher died between index and pointer: readers may have that version.
    """
    complete = store.versions()
    latest = store.latest()
    return max([*complete, *([] if latest is None else [latest])], default=None)


def require_unpublished(store: Store, version: int) -> None:
    """Raises `PublicationError` (ALREADY_PUBLISHED) unless `version` is newer than all that readers may have."""
    newest = newest_version(store)
    if newest is not None and newest >= version:
        raise PublicationError(
            Rejection.ALREADY_PUBLISHED,
            f"the store {store.url} is at version {newest} already: resume from there, or publish an anchor",
            version=version,
        )


def move_pointer(store: Store, version: int) -> None:
    """Move the pointer to `version`, which is complete. Raises `StoreError`, or `PublicationError`
    (ALREADY_PUBLISHED) if it names a higher version; `version` stays published either way.
    """
    try:
        pointed = store.publish(version)
    except StoreError as error:
        raise StoreError(
            f"version {version} is complete, but the pointer was not moved; the next version moves it: {error}"
        ) from error
    if pointed != version:
        raise PublicationError(
            Rejection.ALREADY_PUBLISHED,
            f"the pointer of {store.url} names version {pointed}: another publisher is at work there",
            version=version,
        )


def require_same_tensors(parent: Mapping[str, NamedTensor], new: Mapping[str, NamedTensor]) -> None:
    """Raises `ValueError`, with names, unless both have the same names, shapes and element sizes."""
    problems = [
        *(f"{name} is missing" for name in parent.keys() - new.keys()),
        *(f"{name} is not in the parent" for name in new.keys() - parent.keys()),
    ]
    for name in parent.keys() & new.keys():
        old, young = parent[name], new[name]
        if (old.shape, old.data.nbytes) != (young.shape, young.data.nbytes):
            problems.append(
                f"{name} is {old.dtype} {list(old.shape)} in the parent and {young.dtype} {list(young.shape)} now"
            )
    if problems:
        shown = "; ".join(sorted(problems)[:5])
        raise ValueError(
            f"a delta needs the parent's tensors with new values, but {len(problems)} differ: {shown}"
            f"{'; ...' if len(problems) > 5 else ''}; publish an anchor for another architecture"
        )


def _encode(
    parent: Mapping[str, NamedTensor],
    new: Mapping[str, NamedTensor],
    version: int,
    options: PublishOptions,
) -> dict[str, EncodedTensor]:
    """The changed tensors, in the parent's order."""
    # Largest first, so that no long one is left for the end.
    names = sorted(parent, key=lambda name: -parent[name].data.nbytes)

    def encode(name: str) -> EncodedTensor | None:
        try:
            return encode_tensor(
                parent[name],
                new[name],
                encoding=options.encoding,
                checksum_format=options.checksum_format,
                level=options.level,
            )
        except ValueError as error:
            raise ValueError(f"tensor {name}: {error}") from error

    total_bytes = sum(tensor.data.nbytes for tensor in parent.values())
    with byte_progress(f"version {version}: delta", total_bytes, options.progress) as advance:
        results = run_parallel(options.threads, names, encode, lambda name: advance(parent[name].data.nbytes))
    by_name = dict(zip(names, results, strict=True))
    return {name: encoded for name in parent if (encoded := by_name[name]) is not None}


class _ShardWriter:
    """Writes shard files of one version, and remembers what the index must say about them."""

    def __init__(self, store: Store, version: int) -> None:
        self._store = store
        self._version = version
        self.weight_map: dict[str, str] = {}
        self.digests: dict[str, str] = {}
        self.payload_bytes = 0

    def write(self, file: str, tensors: Mapping[str, NamedTensor], metadata: Mapping[str, str]) -> None:
        content = _serialize(tensors, metadata)
        self._store.write(self._version, file, memoryview(content))
        self.weight_map |= dict.fromkeys(tensors, file)
        self.digests[file] = payload_digest(content)
        self.payload_bytes += len(content)


def _serialize(tensors: Mapping[str, NamedTensor], metadata: Mapping[str, str]) -> bytes:
    specifications = {}
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPE_NAMES:
            raise ValueError(f"tensor {name}: the safetensors library cannot write {tensor.dtype}")
        shape = list(tensor.shape)
        if tensor.dtype == "F4":  # the library counts pairs here
            shape[-1] //= 2
        specifications[name] = safetensors.TensorSpec(
            dtype=DTYPE_NAMES[tensor.dtype],
            shape=shape,
            data_ptr=tensor.data.ctypes.data,
            data_len=tensor.data.nbytes,
        )
    content: bytes = safetensors.serialize(specifications, metadata=dict(metadata))
    return content


def _write_index(store: Store, manifest: Manifest, total_size_bytes: int) -> None:
    text = manifest_text(manifest, total_size_bytes=total_size_bytes)
    if not store.write_new(manifest.version, INDEX_FILE, memoryview(text)):
        raise PublicationError(
            Rejection.ALREADY_PUBLISHED,
            f"another publisher finished this version in {store.url} first",
            version=manifest.version,
        )


def _split(sizes_bytes: Mapping[str, int], shard_bytes: int) -> list[list[str]]:
    """Names in order, cut where a shard would exceed `shard_bytes`; one tensor is never split."""
    shards: list[list[str]] = []
    filled_bytes = 0
    for name, size_bytes in sizes_bytes.items():
        if not shards or filled_bytes + size_bytes > shard_bytes:
            shards.append([])
            filled_bytes = 0
        shards[-1].append(name)
        filled_bytes += size_bytes
    return shards


def _companions(directory: Path) -> Iterator[Path]:
    """The files that make weights a checkpoint: everything that holds no weights and is not hidden."""
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        hidden = any(part.startswith(".") for part in relative.parts)
        if path.is_file() and not hidden and path.suffix not in _WEIGHT_SUFFIXES and path.name != INDEX_FILE:
            yield path
