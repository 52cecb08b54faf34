"""A trainer's publisher: named tensors in, policy versions out, step by step.

Keeps its own copy of the last published weights (the parent), so that the trainer may overwrite its tensors as
soon as a call returns. What is written, and how, is `sync.publication`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sync.named_tensors import NamedTensor, named_tensors
from sync.parent_check import require_parent
from sync.publication import Published, PublishOptions, move_pointer, newest_version, write_anchor, write_delta
from sync.stores import Store, open_store
from sync.types import ChecksumFormat, DeltaEncoding

if TYPE_CHECKING:
    from sync.named_tensors import Tensors

__all__ = ["Published", "Publisher"]

logger = logging.getLogger(__name__)


class Publisher:
    """Publishes one policy's versions to one store.

        publisher = Publisher("s3://bucket/run-1")
        publisher.publish_anchor("path/to/checkpoint")         # version 0
        for step in range(...):
            train()
            publisher.publish_delta(model.state_dict())        # versions 1, 2, ...

    After a restart, `resume` with the weights of the store's latest version before the next delta. Tensors are
    numpy arrays or torch CPU tensors under checkpoint names (a tied tensor once), or a checkpoint directory.
    Holds one copy of the policy in host memory. Not for use from several threads at once.
    """

    def __init__(
        self,
        store: Store | str,
        *,
        encoding: DeltaEncoding = PublishOptions.encoding,
        checksum_format: ChecksumFormat = PublishOptions.checksum_format,
        level: int = PublishOptions.level,
        shard_bytes: int = PublishOptions.shard_bytes,
        threads: int | None = None,
        progress: bool | None = None,
    ) -> None:
        """See `sync.publication.PublishOptions` for the options. Raises `ValueError` for a bad one."""
        self.store = open_store(store) if isinstance(store, str) else store
        self._options = PublishOptions(encoding, checksum_format, level, shard_bytes, threads, progress)
        self._parent: dict[str, NamedTensor] | None = None
        self._version: int | None = None

    @property
    def version(self) -> int | None:
        """The version whose weights are the parent of the next delta; None before the first."""
        return self._version

    def publish_anchor(self, tensors: Tensors, version: int | None = None) -> Published:
        """Publish a whole policy; from a directory, config and tokenizer files come along.

        `version`: by default 0 in an empty store, else one above the latest.
        Raises `PublicationError` (ALREADY_PUBLISHED), `StoreError`, `ValueError`, `FileNotFoundError`.
        """
        directory = Path(tensors) if isinstance(tensors, str | os.PathLike) else None
        new = named_tensors(tensors)
        if version is None:
            newest = newest_version(self.store)
            version = 0 if newest is None else newest + 1
        published = write_anchor(self.store, new, version, self._options, beside=directory)
        self._parent = _copied(new)
        self._version = version
        move_pointer(self.store, version)
        return published

    def publish_delta(self, tensors: Tensors) -> Published:
        """Publish what changed since the last version. Unchanged tensors are not written.

        All of the policy's tensors must be given. If this raises, nothing was published and the call may be
        repeated; only where the message says that the version is complete has the parent moved on.
        Raises `ValueError` if names, shapes or sizes differ from the parent's, `RuntimeError` without a
        parent, `PublicationError` (ALREADY_PUBLISHED), `StoreError`.
        """
        if self._parent is None or self._version is None:
            raise RuntimeError(
                "a delta needs a parent: publish an anchor first, or resume with the weights of the latest version"
            )
        new = named_tensors(tensors)
        version = self._version + 1
        published, changed = write_delta(self.store, self._parent, new, version, self._version, self._options)
        for name in changed:
            np.copyto(self._parent[name].data, new[name].data)
        self._version = version
        move_pointer(self.store, version)
        return published

    def resume(self, parent: Tensors) -> int:
        """Take `parent` as the weights of the store's newest version and go on from there; returns the version.

        The newest is the highest complete one: above the pointer, if the last publisher died before moving it. In
        an empty store it is version 0: the checkpoint that engines were started with. Every tensor whose
        checksum the store knows is checked. Raises `PublicationError` (WRONG_PARENT) if one is missing or
        differs; `StoreError`.
        """
        tensors = named_tensors(parent)
        version = newest_version(self.store) or 0
        checked = require_parent(tensors, self.store, version, threads=self._options.threads)
        if checked < len(tensors):
            logger.warning(
                "version %d: %d of %d tensors of the parent are taken on trust, the store has no checksum of them",
                version,
                len(tensors) - checked,
                len(tensors),
            )
        self._parent = _copied(tensors)
        self._version = version
        return version


def _copied(tensors: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    return {name: tensor._replace(data=tensor.data.copy()) for name, tensor in tensors.items()}
