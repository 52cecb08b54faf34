"""A checkpoint directory on local disk: its tensors, their bytes, and letting go of them.

Reads the Hugging Face layout (`*.safetensors`, with `model.safetensors.index.json` where there are several files).
Knows torch only through safetensors' zero-copy reader; knows no engine.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch
from safetensors import safe_open

from sync.layout import CheckpointTensor
from sync.types import INDEX_FILE


class CheckpointDirectory:
    """The tensors of a checkpoint directory. Bytes are mapped from disk, not read ahead or copied."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.files:
            raise FileNotFoundError(f"{self.path}: no safetensors file; expected a Hugging Face checkpoint directory")

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Weight files, sorted; those that the index names where there is one (as loaders do)."""
        index = self.path / INDEX_FILE
        if index.is_file():
            names = set(json.loads(index.read_text())["weight_map"].values())
            return tuple(sorted(self.path / name for name in names))
        return tuple(sorted(self.path.glob("*.safetensors")))

    @cached_property
    def tensors(self) -> tuple[CheckpointTensor, ...]:
        """Every tensor, by name."""
        found: list[CheckpointTensor] = []
        for file in self.files:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118 - the reader is no mapping
                    part = reader.get_slice(name)
                    found.append(CheckpointTensor(name, part.get_dtype(), tuple(part.get_shape())))
        return tuple(sorted(found, key=lambda tensor: tensor.name))

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors in file order; a tensor is a view of the mapped file."""
        for file in self.files:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118 - the reader is no mapping
                    yield name, reader.get_tensor(name)

    @property
    def size_bytes(self) -> int:
        """Size of the weight files."""
        return sum(file.stat().st_size for file in self.files)

    def drop_page_cache(self) -> None:
        """Tells the kernel to forget the weight files' cached pages: that host memory is the point of deleting."""
        for file in self.files:
            with contextlib.suppress(FileNotFoundError), file.open("rb") as handle:
                os.fsync(handle.fileno())
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def delete_weights(self) -> int:
        """Deletes the weight files (config and tokenizer stay, the engine may read them again).

        Returns the bytes freed. Page cache is dropped first, since unlinking alone keeps pages of a mapped file.
        """
        freed = self.size_bytes
        self.drop_page_cache()
        for file in self.files:
            # A hub cache links into a blob store: the bytes are behind the link.
            for target in {file.resolve(), file}:
                target.unlink(missing_ok=True)
        return freed
