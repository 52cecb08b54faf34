"""Whether given weights are the ones that a version was published as, as far as the store can tell."""

from __future__ import annotations

from collections.abc import Mapping

from sync.checksums import checksum
from sync.errors import PublicationError, Rejection
from sync.format import read_checksums, read_manifest
from sync.named_tensors import NamedTensor
from sync.parallel import run_parallel
from sync.stores import Store
from sync.types import AnchorManifest, Checksum


def known_checksums(store: Store, version: int) -> dict[str, Checksum | None]:
    """The newest published checksum of each tensor as of `version`, following the chain back to its anchor.

    None for an anchor's tensor without one. Tensors that the store says nothing of are absent: all of them if
    `version` itself is not published. Reads indexes and file headers only.
    """
    known: dict[str, Checksum | None] = {}
    while True:
        try:
            manifest = read_manifest(store, version)
        except PublicationError as error:
            if error.rejection is Rejection.INDEX_MISSING:
                return known
            raise
        found = read_checksums(store, manifest)
        for tensor in manifest.weight_map:
            known.setdefault(tensor, found.get(tensor))
        if isinstance(manifest, AnchorManifest):
            return known
        version = manifest.base_version


def require_parent(parent: Mapping[str, NamedTensor], store: Store, version: int, *, threads: int | None) -> int:
    """Check `parent` against every checksum that the store knows as of `version`; returns how many it checked.

    Raises `PublicationError` (WRONG_PARENT) naming the first tensor that is missing or differs.
    """
    known = known_checksums(store, version)
    if missing := sorted(known.keys() - parent.keys()):
        raise PublicationError(
            Rejection.WRONG_PARENT,
            f"the parent lacks {len(missing)} of the version's {len(known)} tensors",
            version=version,
            tensor=missing[0],
        )
    checked = [(name, expected) for name, expected in known.items() if expected is not None]

    def differs(item: tuple[str, Checksum]) -> str | None:
        name, expected = item
        found = checksum(expected.format, parent[name].data.data)
        return None if found == expected.text else found

    results = run_parallel(threads, checked, differs)
    wrong = [(*item, found) for item, found in zip(checked, results, strict=True) if found is not None]
    if wrong:
        name, expected, found = wrong[0]
        raise PublicationError(
            Rejection.WRONG_PARENT,
            f"{len(wrong)} of {len(checked)} tensors of the parent are not the ones published: the "
            f"{expected.format.value} is {found}, published was {expected.text}; give the weights of this version",
            version=version,
            tensor=name,
        )
    return len(checked)
