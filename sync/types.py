"""The published format as frozen values: what an index says, and what leads from one version to another.

Owns the words (delta, anchor, chain, checksum format) and their pure rules. Refuses to own any I/O: reading
and every rejection live in `sync.format`, bytes come from `sync.stores`.

A policy version is a plain `int` >= 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from functools import cached_property

INDEX_FILE = "model.safetensors.index.json"
POINTER_FILE = "latest"

_VERSION_DIRECTORY = re.compile(r"weight_v([0-9]{6}|[1-9][0-9]{6,17})")


@unique
class DeltaEncoding(Enum):
    """What the zstd frames of a changed tensor hold."""

    XOR = "xor"
    """`parent_bytes XOR new_bytes`, as long as the tensor."""
    OVERWRITE = "overwrite"
    """u32 count, `count` u32 byte positions, then `count` new bytes; all little-endian."""


@unique
class Compression(Enum):
    ZSTD = "zstd"


@unique
class ChecksumFormat(Enum):
    """Checksum of a tensor's whole new bytes, written as lower-case hexadecimal."""

    ADLER32 = "adler32"
    XXH3_128 = "xxh3-128"
    BLAKE3 = "blake3"

    @property
    def hex_digits(self) -> int:
        return {ChecksumFormat.ADLER32: 8, ChecksumFormat.XXH3_128: 32, ChecksumFormat.BLAKE3: 64}[self]

    def is_well_formed(self, text: str) -> bool:
        """Whether `text` could be a checksum of this format: right length, lower-case hexadecimal."""
        return len(text) == self.hex_digits and all(digit in "0123456789abcdef" for digit in text)


@dataclass(frozen=True)
class Checksum:
    """One tensor's checksum: its format and its hexadecimal text."""

    format: ChecksumFormat
    text: str


@dataclass(frozen=True)
class _Manifest:
    version: int
    weight_map: Mapping[str, str]
    """Tensor name -> file name inside the version directory."""
    payload_digests: Mapping[str, str] = field(default_factory=dict)
    """File name -> xxh3-64 of the whole file (16 hex digits). Empty if the publisher wrote none."""

    @cached_property
    def tensors_of(self) -> Mapping[str, tuple[str, ...]]:
        """File name -> names of its tensors; files and names sorted."""
        by_file: dict[str, list[str]] = {}
        for tensor in sorted(self.weight_map):
            by_file.setdefault(self.weight_map[tensor], []).append(tensor)
        return {file: tuple(by_file[file]) for file in sorted(by_file)}

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the weight map names, sorted, each once."""
        return tuple(self.tensors_of)


@dataclass(frozen=True)
class DeltaManifest(_Manifest):
    """The index of a delta. An empty `weight_map` is valid: a version that changes nothing."""

    base_version: int = field(kw_only=True)
    encoding: DeltaEncoding = field(kw_only=True)
    checksum_format: ChecksumFormat = field(kw_only=True)
    compression: Compression = field(default=Compression.ZSTD, kw_only=True)
    dtypes: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Tensor name -> safetensors dtype ("BF16") of the checkpoint tensor. May be empty."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict, kw_only=True)
    """Tensor name -> shape of the checkpoint tensor. May be empty."""
    parent_checksums: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Tensor name -> checksum of the parent's bytes, in `checksum_format`. May be empty."""
    changed_elements: int | None = field(default=None, kw_only=True)
    total_elements: int | None = field(default=None, kw_only=True)

    @property
    def density(self) -> float | None:
        """Changed elements over all elements of the policy; None if the publisher did not say."""
        if self.changed_elements is None or not self.total_elements:
            return None
        return self.changed_elements / self.total_elements


@dataclass(frozen=True)
class AnchorManifest(_Manifest):
    """The index of an anchor: an ordinary checkpoint directory. It resets the chain."""

    checksum_format: ChecksumFormat = field(default=ChecksumFormat.ADLER32, kw_only=True)
    """Format of checksums stored under a tensor's own name in the files' `__metadata__`."""


Manifest = DeltaManifest | AnchorManifest


@dataclass(frozen=True)
class Chain:
    """What leads to `target`: an anchor if the served weights must be replaced, then deltas, oldest first."""

    target: int
    anchor: AnchorManifest | None = None
    deltas: tuple[DeltaManifest, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if the target is already being served."""
        return self.anchor is None and not self.deltas


def version_directory(version: int) -> str:
    """`7` -> `weight_v000007`."""
    if version < 0:
        raise ValueError(f"a policy version is an integer >= 0, not {version}")
    return f"weight_v{version:06d}"


def parse_version_directory(name: str) -> int | None:
    """`weight_v000007` -> `7`; None for any other name."""
    match = _VERSION_DIRECTORY.fullmatch(name)
    return int(match.group(1)) if match else None


def is_inside_directory(file: str) -> bool:
    """Whether a relative path with `/` between its parts stays inside the version directory.

    Stricter than needed on purpose: no `..`, `.` or empty part, no backslash or colon, nothing unprintable, at
    most 255 characters.
    """
    parts = file.split("/")
    return (
        len(file) <= 255
        and file.isprintable()
        and all(part not in ("", ".", "..") for part in parts)
        and not any(character in "\\:" for character in file)
    )
