"""Changes of one tensor out of published payloads: decoded, grouped into elements, composed over a chain.

Every encoding becomes `Changes`, where the new value of an element is `(old & keep) ^ mask`: an XOR delta keeps all
bits, an overwrite keeps none of the bytes it names. Such steps compose without knowing any old value, which is what
lets a planner work ahead of the engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from native import DecodeError, decode_sparse
from sync.errors import PublicationError, Rejection
from sync.format import decode_overwrite
from sync.layout import CheckpointTensor
from sync.mapping import Changes
from sync.types import DeltaEncoding

UNSIGNED_OF_SIZE: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def decode_changes(payload: memoryview, encoding: DeltaEncoding, tensor: CheckpointTensor) -> Changes:
    """Decodes one payload. Raises PublicationError: BAD_FRAME, or what `decode_overwrite` rejects."""
    if encoding is DeltaEncoding.OVERWRITE:
        overwrite = decode_overwrite(payload, tensor.size_bytes)
        return overwrite_changes(overwrite.positions, overwrite.values, tensor.element_size)
    try:
        positions, masks = decode_sparse(payload, tensor.size_bytes, tensor.element_size)
    except DecodeError as error:
        raise PublicationError(
            Rejection.BAD_FRAME, f"payload of {len(payload)} bytes: {error}", tensor=tensor.name
        ) from error
    return Changes(positions, masks)


def overwrite_changes(byte_positions: npt.NDArray[Any], values: npt.NDArray[np.uint8], element_size: int) -> Changes:
    """Groups sorted byte positions and their new bytes into elements (little-endian)."""
    unsigned = UNSIGNED_OF_SIZE[element_size]
    elements, lanes = np.divmod(byte_positions, element_size)
    positions, rows = np.unique(elements, return_inverse=True)
    masks = np.zeros((len(positions), element_size), dtype=np.uint8)
    keeps = np.full((len(positions), element_size), 0xFF, dtype=np.uint8)
    masks[rows, lanes] = values
    keeps[rows, lanes] = 0
    return Changes(positions, masks.view(unsigned).reshape(-1), keeps.view(unsigned).reshape(-1))


def compose(first: Changes, second: Changes) -> Changes:
    """The changes that have the effect of `first`, then `second`. Elements that end up unchanged are dropped."""
    ones = ~first.masks.dtype.type(0)
    positions = np.concatenate([first.positions, second.positions])
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    masks = np.concatenate([first.masks, second.masks])[order]
    keeps = np.concatenate([_keeps(first, ones), _keeps(second, ones)])[order]
    # A position occurs at most twice; stable order puts the earlier step first.
    pair = np.flatnonzero(positions[1:] == positions[:-1])
    masks[pair] = (masks[pair] & keeps[pair + 1]) ^ masks[pair + 1]
    keeps[pair] &= keeps[pair + 1]
    kept = (masks != 0) | (keeps != ones)
    kept[pair + 1] = False
    is_pure_xor = first.keeps is None and second.keeps is None
    return Changes(positions[kept], masks[kept], None if is_pure_xor else keeps[kept])


def apply_dense(changes: Changes, values: npt.NDArray[Any]) -> None:
    """Applies changes in place to a whole tensor given as 1-D unsigned values of the element size."""
    old = values[changes.positions]
    kept = old if changes.keeps is None else old & changes.keeps
    values[changes.positions] = kept ^ changes.masks


def _keeps(changes: Changes, ones: Any) -> npt.NDArray[Any]:
    return np.full_like(changes.masks, ones) if changes.keeps is None else changes.keeps
