"""What a user would do today: apply a delta to the checkpoint on disk, then let vLLM load the files again.

numpy and `zstandard` on a thread pool, files written in place. The yardstick, kept as plain as its users write it.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import zstandard

from sync.format import fetch_shard, read_manifest
from sync.stores.base import Store
from sync.types import DeltaManifest


class DiskCheckpoint:
    """The safetensors files of a checkpoint directory, mapped for writing."""

    def __init__(self, directory: Path) -> None:
        self._maps: list[np.memmap[tuple[int], np.dtype[np.uint8]]] = []
        self._places: dict[str, tuple[int, int, int]] = {}
        for file in sorted(directory.glob("*.safetensors")):
            mapped = np.memmap(file, np.uint8, "r+")
            for name, start, end in _tensors(bytes(mapped[:8]), mapped):
                self._places[name] = (len(self._maps), start, end)
            self._maps.append(mapped)

    def apply(self, store: Store, version: int) -> None:
        """Applies delta `version` to the files."""
        manifest = read_manifest(store, version)
        assert isinstance(manifest, DeltaManifest)
        entries = [entry for file in manifest.files for entry in fetch_shard(store, manifest, file)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda entry: self._apply(entry.name, entry.payload), entries))
        for mapped in self._maps:
            mapped.flush()

    def _apply(self, name: str, payload: memoryview) -> None:
        index, start, end = self._places[name]
        reader = zstandard.ZstdDecompressor().stream_reader(payload, read_across_frames=True)
        target = self._maps[index][start:end]
        np.bitwise_xor(target, np.frombuffer(reader.read(end - start), np.uint8), out=target)


def _tensors(prefix: bytes, mapped: np.ndarray) -> list[tuple[str, int, int]]:  # type: ignore[type-arg]
    length = int.from_bytes(prefix, "little")
    header = json.loads(bytes(mapped[8 : 8 + length]))
    header.pop("__metadata__", None)
    base = 8 + length
    return [(name, *(base + offset for offset in entry["data_offsets"])) for name, entry in header.items()]
