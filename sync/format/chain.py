"""From the version being served to the one wanted: the shortest chain that the store offers."""

from __future__ import annotations

from sync.errors import PublicationError, Rejection
from sync.format.manifest import read_manifest
from sync.stores.base import Store
from sync.types import AnchorManifest, Chain, DeltaManifest


def resolve_chain(store: Store, serving: int | None, target: int) -> Chain:
    """The chain from `serving` to `target`, found by following `base_version` back from the target.

    Deltas only, if they lead back to `serving`; else the nearest anchor on the way and the deltas after it
    (`chain.anchor` is set: the served weights must be replaced). `serving=None`: nothing is served yet, the
    chain must start at an anchor.

    Raises `PublicationError`: INDEX_MISSING if the target itself is not published, CHAIN_GAP if the way back
    ends before it meets `serving` or an anchor, and whatever `read_manifest` rejects.
    """
    deltas: list[DeltaManifest] = []
    version = target
    while version != serving:
        try:
            manifest = read_manifest(store, version)
        except PublicationError as error:
            if error.rejection is Rejection.INDEX_MISSING and deltas:
                raise _gap(store, serving, deltas, version) from error
            raise
        if isinstance(manifest, AnchorManifest):
            return Chain(target, manifest, tuple(reversed(deltas)))
        deltas.append(manifest)
        version = manifest.base_version  # smaller than before: the loop ends
    return Chain(target, None, tuple(reversed(deltas)))


def _gap(store: Store, serving: int | None, deltas: list[DeltaManifest], missing: int) -> PublicationError:
    served = "nothing is served yet" if serving is None else f"version {serving} is served"
    return PublicationError(
        Rejection.CHAIN_GAP,
        f"no chain leads to version {deltas[0].version}: version {deltas[-1].version} is a delta against "
        f"{missing}, which is not published in {store.url}, and {served}; publish version {missing} "
        f"or an anchor",
        version=missing,
    )
