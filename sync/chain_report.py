"""What the chain to a version looks like in the store, for a person or a script."""

from __future__ import annotations

from dataclasses import dataclass

from sync.errors import PublicationError, Rejection
from sync.format import read_manifest
from sync.stores import Store
from sync.types import DeltaManifest


@dataclass(frozen=True)
class VersionReport:
    """One version of a chain."""

    version: int
    kind: str
    base_version: int | None
    encoding: str | None
    checksum_format: str
    tensors: int
    files: int
    file_bytes: int
    """All files of the version directory, config and tokenizer included."""
    density: float | None
    """Changed over all elements; None for an anchor, or where the publisher did not say."""


def report_chain(store: Store, version: int) -> list[VersionReport]:
    """The chain to `version`, oldest first: from its anchor, or as far back as the store goes.

    Reads indexes and listings only. Raises `PublicationError` if an index on the way is broken, `StoreError`.
    """
    entries: list[VersionReport] = []
    while True:
        try:
            manifest = read_manifest(store, version)
        except PublicationError as error:
            if error.rejection is Rejection.INDEX_MISSING and entries:
                return entries[::-1]
            raise
        delta = manifest if isinstance(manifest, DeltaManifest) else None
        sizes = store.files(version)
        entries.append(
            VersionReport(
                version,
                "delta" if delta else "anchor",
                delta.base_version if delta else None,
                delta.encoding.value if delta else None,
                manifest.checksum_format.value,
                len(manifest.weight_map),
                len(sizes),
                sum(sizes.values()),
                delta.density if delta else None,
            )
        )
        if delta is None:
            return entries[::-1]
        version = delta.base_version
