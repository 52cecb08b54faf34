"""A version's index: parsed, written, and rejected where neither files nor engine are needed to see why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from sync.errors import PublicationError, Rejection
from sync.format.safetensors_header import DTYPE_BITS, is_shape
from sync.format.strict_json import parse_object
from sync.stores.base import Store
from sync.types import (
    INDEX_FILE,
    AnchorManifest,
    ChecksumFormat,
    Compression,
    DeltaEncoding,
    DeltaManifest,
    Manifest,
    is_inside_directory,
)

INDEX_LIMIT_BYTES = 256 << 20
PAYLOAD_DIGEST_FORMAT = "xxh3-64"
_PAYLOAD_DIGEST_TEXT = re.compile(r"[0-9a-f]{16}")
_DECIMAL = re.compile(r"[0-9]{1,18}")

_Choice = TypeVar("_Choice", bound=Enum)
_Value = TypeVar("_Value")


def read_manifest(store: Store, version: int) -> Manifest:
    """Read and check the index of `version`.

    Raises `PublicationError`: INDEX_MISSING (nothing published, or a publisher died), INDEX_TOO_LARGE,
    BAD_INDEX, UNKNOWN_* formats, VERSION_MISMATCH, PATH_LEAVES_DIRECTORY. `StoreError` if the store fails.
    """
    text = store.read_small(version, INDEX_FILE, limit_bytes=INDEX_LIMIT_BYTES)
    if text is None:
        raise PublicationError(
            Rejection.INDEX_MISSING,
            f"not published in {store.url}: there is no index (a publisher that dies leaves none)",
            version=version,
            file=INDEX_FILE,
        )
    if len(text) > INDEX_LIMIT_BYTES:
        raise PublicationError(
            Rejection.INDEX_TOO_LARGE,
            f"the index has more than {INDEX_LIMIT_BYTES} bytes",
            version=version,
            file=INDEX_FILE,
        )
    return parse_manifest(text, version)


def parse_manifest(text: bytes, version: int) -> Manifest:
    """Parse the text of the index of `version`. Raises as `read_manifest` does."""
    try:
        return _parse(parse_object(text), version)
    except ValueError as error:
        raise PublicationError(
            Rejection.BAD_INDEX, f"cannot parse the index: {error}", version=version, file=INDEX_FILE
        ) from error
    except PublicationError as error:
        raise error.at(version=version, file=INDEX_FILE) from error.__cause__


def manifest_text(manifest: Manifest, *, total_size_bytes: int) -> bytes:
    """The index as it is published. `total_size_bytes` goes where Hugging Face puts an anchor's size."""
    metadata: dict[str, Any] = {"version": f"{manifest.version:06d}"}
    if isinstance(manifest, DeltaManifest):
        metadata |= {
            "base_version": f"{manifest.base_version:06d}",
            "delta_encoding": manifest.encoding.value,
            "compression_format": manifest.compression.value,
            "checksum_format": manifest.checksum_format.value,
            "changed_elements": manifest.changed_elements,
            "total_elements": manifest.total_elements,
            "dtypes": dict(manifest.dtypes),
            "shapes": {tensor: list(shape) for tensor, shape in manifest.shapes.items()},
            "parent_checksums": dict(manifest.parent_checksums),
        }
    else:
        metadata |= {"total_size": total_size_bytes, "checksum_format": manifest.checksum_format.value}
    metadata |= {
        "payload_digest_format": PAYLOAD_DIGEST_FORMAT,
        "payload_digests": dict(manifest.payload_digests),
    }
    kept = {key: value for key, value in metadata.items() if value is not None}
    return json.dumps({"metadata": kept, "weight_map": dict(manifest.weight_map)}, indent=1).encode()


def _parse(index: Mapping[str, Any], version: int) -> Manifest:
    # Required of an anchor, too: a delta whose metadata is lost must not pass for one.
    metadata = index.get("metadata")
    if not isinstance(metadata, dict):
        raise ValueError("metadata must be an object")
    weight_map = _string_map(index.get("weight_map"), "weight_map")
    for tensor, file in weight_map.items():
        if not is_inside_directory(file):
            raise PublicationError(
                Rejection.PATH_LEAVES_DIRECTORY,
                f"weight_map names {file!r}, which is not a plain path inside the version directory",
                tensor=tensor,
            )
    digests = _payload_digests(metadata, set(weight_map.values()))
    if "delta_encoding" in metadata:
        return _delta(metadata, version, weight_map, digests)
    if "base_version" in metadata or "compression_format" in metadata:
        raise ValueError("no delta_encoding, but other keys of a delta: neither a delta nor an anchor")
    if not weight_map:
        raise ValueError("an anchor with an empty weight_map has no weights")
    if "version" in metadata:
        _require_version(metadata["version"], version)
    return AnchorManifest(
        version,
        weight_map,
        digests,
        checksum_format=_choice(
            metadata.get("checksum_format", ChecksumFormat.ADLER32.value),
            ChecksumFormat,
            "checksum_format",
            Rejection.UNKNOWN_CHECKSUM_FORMAT,
        ),
    )


def _delta(
    metadata: Mapping[str, Any], version: int, weight_map: Mapping[str, str], digests: Mapping[str, str]
) -> DeltaManifest:
    encoding = _choice(metadata["delta_encoding"], DeltaEncoding, "delta_encoding", Rejection.UNKNOWN_DELTA_ENCODING)
    compression = _choice(
        metadata.get("compression_format"),
        Compression,
        "compression_format",
        Rejection.UNKNOWN_COMPRESSION_FORMAT,
    )
    checksum_format = _choice(
        metadata.get("checksum_format"), ChecksumFormat, "checksum_format", Rejection.UNKNOWN_CHECKSUM_FORMAT
    )
    _require_version(metadata.get("version"), version)
    base_version = _decimal(metadata.get("base_version"), "base_version")
    if base_version >= version:
        raise PublicationError(
            Rejection.VERSION_MISMATCH,
            f"base_version must be older than the version itself, found {base_version}",
        )
    return DeltaManifest(
        version,
        weight_map,
        digests,
        base_version=base_version,
        encoding=encoding,
        compression=compression,
        checksum_format=checksum_format,
        dtypes=_optional_map(metadata, "dtypes", _dtype),
        shapes=_optional_map(metadata, "shapes", _shape),
        parent_checksums=_optional_map(
            metadata, "parent_checksums", lambda value: _checksum_text(value, checksum_format)
        ),
        changed_elements=_optional_count(metadata, "changed_elements"),
        total_elements=_optional_count(metadata, "total_elements"),
    )


def _payload_digests(metadata: Mapping[str, Any], files: set[str]) -> Mapping[str, str]:
    if "payload_digest_format" not in metadata:
        return {}
    found = metadata["payload_digest_format"]
    if found != PAYLOAD_DIGEST_FORMAT:
        raise PublicationError(
            Rejection.UNKNOWN_DIGEST_FORMAT,
            f"payload_digest_format must be {PAYLOAD_DIGEST_FORMAT!r}, found {str(found)[:40]!r}",
        )
    digests = _string_map(metadata.get("payload_digests"), "payload_digests")
    if missing := sorted(files - set(digests)):
        raise ValueError(f"payload_digests lacks {len(missing)} of {len(files)} files, the first is {missing[0]}")
    for file, digest in digests.items():
        if not _PAYLOAD_DIGEST_TEXT.fullmatch(digest):
            raise ValueError(f"payload_digests[{file!r}] must be 16 lower-case hex digits, found {digest[:40]!r}")
    return digests


def _require_version(value: Any, version: int) -> None:
    found = _decimal(value, "version")
    if found != version:
        raise PublicationError(
            Rejection.VERSION_MISMATCH, f"the index of version {version} says that it is version {found}"
        )


def _decimal(value: Any, key: str) -> int:
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        raise ValueError(f"{key} must be a decimal string like '000007', found {str(value)[:40]!r}")
    return int(value)


def _choice(value: Any, choices: type[_Choice], key: str, rejection: Rejection) -> _Choice:
    for choice in choices:
        if choice.value == value:
            return choice
    known = ", ".join(repr(choice.value) for choice in choices)
    raise PublicationError(rejection, f"{key} must be one of {known}, found {str(value)[:40]!r}")


def _string_map(value: Any, key: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ValueError(f"{key} must map names to strings")
    return value


def _optional_map(metadata: Mapping[str, Any], key: str, parse: Callable[[Any], _Value]) -> Mapping[str, _Value]:
    value = metadata.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"{key} must map tensor names")
    try:
        return {tensor: parse(item) for tensor, item in value.items()}
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _optional_count(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{key} must be an integer >= 0, found {str(value)[:40]!r}")
    return value


def _dtype(value: Any) -> str:
    if not isinstance(value, str) or value not in DTYPE_BITS:
        raise ValueError(f"unknown dtype {str(value)[:40]!r}")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if not is_shape(value):
        raise ValueError(f"a shape is a list of integers >= 0, found {str(value)[:40]}")
    return tuple(value)


def _checksum_text(value: Any, checksum_format: ChecksumFormat) -> str:
    if not isinstance(value, str) or not checksum_format.is_well_formed(value):
        raise ValueError(
            f"a {checksum_format.value} checksum has {checksum_format.hex_digits} lower-case hex digits, "
            f"found {str(value)[:80]!r}"
        )
    return value
