"""Where the served weights start: the user's own checkpoint, or an anchor brought from the store.

Owns the managed directory: copies made here are ours to delete, and are gone after a clean end or, after a crash, at
the next start. A path that the user named is never deleted unless asked for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import xxhash

from runtime.cache import cache_directory
from sync.checkpoint import CheckpointDirectory
from sync.errors import PublicationError, Rejection
from sync.format import read_manifest
from sync.stores.base import Store
from sync.types import AnchorManifest

logger = logging.getLogger("rollout.checkpoint")
CHUNK_BYTES = 64 << 20
_PREFIX = "replica-"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ServedCheckpoint:
    """What vLLM loads. `is_managed`: our own copy, to be deleted once engine memory is proven equal."""

    path: Path
    version: int
    is_managed: bool

    def release(self, *, delete_user_files: bool) -> int:
        """After the proof: deletes weight files where allowed, else only forgets their cached pages.

        Returns the bytes of weights that no longer take disk (and, as page cache, memory).
        """
        directory = CheckpointDirectory(self.path)
        if self.is_managed or delete_user_files:
            return directory.delete_weights()
        directory.drop_page_cache()
        return 0


@contextlib.contextmanager
def managed_directory(root: Path | None) -> Iterator[Path]:
    """A directory of this process under `root`, removed at the end. Leftovers of dead processes are removed first."""
    base = root or cache_directory() / "managed"
    base.mkdir(parents=True, exist_ok=True)
    for leftover in base.glob(f"{_PREFIX}*"):
        owner = leftover.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            logger.info("removing what a dead process left: %s", leftover)
            shutil.rmtree(leftover, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def user_checkpoint(model: str, version: int) -> ServedCheckpoint:
    """A local checkpoint directory, or a hub id brought to the hub's own cache (both are the user's)."""
    path = Path(model).expanduser()
    if not path.is_dir():
        from huggingface_hub import snapshot_download

        path = Path(snapshot_download(model, allow_patterns=["*.safetensors", "*.json", "*.txt", "*.jinja", "*.model"]))
    return ServedCheckpoint(path, version, is_managed=False)


def materialise_anchor(store: Store, directory: Path, progress: Progress) -> ServedCheckpoint:
    """Brings the newest anchor at or below `latest` to `directory`, checking file digests where published.

    Raises PublicationError (INDEX_MISSING) where the store holds no anchor, or its digests do not match.
    """
    manifest = _newest_anchor(store)
    files = store.files(manifest.version)
    total, done = sum(files.values()), 0
    target = directory / f"anchor-{manifest.version:06d}"
    for file, size_bytes in files.items():
        path = target / file
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = xxhash.xxh3_64()
        with path.open("wb") as sink:
            for offset in range(0, size_bytes, CHUNK_BYTES):
                part = bytearray(min(CHUNK_BYTES, size_bytes - offset))
                store.read_into(manifest.version, file, memoryview(part), offset=offset)
                sink.write(part)
                digest.update(part)
                done += len(part)
                progress(done, total)
        expected = manifest.payload_digests.get(file)
        if expected is not None and digest.hexdigest() != expected:
            raise PublicationError(
                Rejection.PAYLOAD_DIGEST_MISMATCH,
                f"the file's xxh3-64 is {digest.hexdigest()} over {size_bytes} bytes, the index says {expected}",
                version=manifest.version,
                file=file,
            )
    return ServedCheckpoint(target, manifest.version, is_managed=True)


def _newest_anchor(store: Store) -> AnchorManifest:
    latest = store.latest()
    for version in reversed(store.versions()):
        if latest is None or version <= latest:
            manifest = read_manifest(store, version)
            if isinstance(manifest, AnchorManifest):
                return manifest
    raise PublicationError(
        Rejection.INDEX_MISSING, f"no anchor is published in {store.url}; publish one, or name MODEL to start from"
    )
