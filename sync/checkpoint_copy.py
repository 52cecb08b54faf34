"""Writing a checkpoint directory whole or not at all, and a copy of one with other tensor values.

Owns: the temporary-directory-and-rename dance, and copying a Hugging Face checkpoint while
replacing tensors. Does not own: reading checkpoints for serving, or the published format.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sync.types import INDEX_FILE

if TYPE_CHECKING:
    import torch


@contextmanager
def atomic_directory(destination: Path) -> Iterator[Path]:
    """Yields a temporary directory beside ``destination`` and renames it there when the block succeeds.

    If the block raises, the temporary directory is removed and ``destination`` never appears.
    Raises FileExistsError, before anything is written, if ``destination`` exists already.
    """
    if destination.exists():
        raise FileExistsError(f"{destination} exists already; remove it or choose another directory")
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".tmp", dir=destination.parent))
    try:
        temporary.chmod(0o755)  # mkdtemp makes it private, which a checkpoint is not
        yield temporary
        temporary.rename(destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_checkpoint_copy(source: Path, destination: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes ``destination``: the checkpoint ``source`` with the named tensors replaced.

    Every other file (config, tokenizer, index) is copied. A replacement must have the dtype and the
    shape of the tensor it replaces. ``destination`` appears whole or not at all.

    Raises ValueError for a name that ``source`` does not hold, or another dtype or shape;
    FileNotFoundError if ``source`` holds no safetensors file, FileExistsError if ``destination`` exists.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    from sync.checkpoint import CheckpointDirectory

    checkpoint = CheckpointDirectory(source)
    unknown = sorted(set(tensors) - {tensor.name for tensor in checkpoint.tensors})
    if unknown:
        raise ValueError(f"not tensors of the checkpoint {source}: {', '.join(unknown)}")
    with atomic_directory(destination) as directory:
        for entry in source.iterdir():
            if entry.is_file() and entry.suffix != ".safetensors":
                shutil.copy2(entry, directory / entry.name)
        for file in checkpoint.files:
            with safe_open(file, framework="pt") as shard:
                contents = {
                    name: _replacement(name, shard.get_tensor(name), tensors.get(name))
                    for name in shard.keys()  # noqa: SIM118 - the reader is no mapping
                }
                save_file(contents, directory / file.name, metadata=shard.metadata())


def write_index(directory: Path, weight_map: Mapping[str, str], total_size_bytes: int) -> None:
    """Writes the index of a checkpoint of several files, as Hugging Face does."""
    index = {"metadata": {"total_size": total_size_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _replacement(name: str, old: torch.Tensor, new: torch.Tensor | None) -> torch.Tensor:
    if new is None:
        return old
    if new.dtype != old.dtype or new.shape != old.shape:
        raise ValueError(
            f"{name}: expected {old.dtype} {tuple(old.shape)} as in the source checkpoint, "
            f"found {new.dtype} {tuple(new.shape)}"
        )
    return new.detach().contiguous()
