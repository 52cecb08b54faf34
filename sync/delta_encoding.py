"""One tensor of a delta: from parent and new bytes to its zstd payload, in either encoding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import zstandard

from native import encode_delta
from sync.checksums import adler32_text, checksum
from sync.named_tensors import NamedTensor
from sync.types import ChecksumFormat, DeltaEncoding

OVERWRITE_LIMIT_BYTES = (1 << 32) - 1
"""Count and positions of the overwrite encoding are u32."""


class EncodedTensor(NamedTuple):
    """A changed tensor, ready to be written. The checksums are of the new and of the parent's bytes."""

    payload: bytes
    changed_elements: int
    checksum: str
    parent_checksum: str


def encode_tensor(
    parent: NamedTensor,
    new: NamedTensor,
    *,
    encoding: DeltaEncoding,
    checksum_format: ChecksumFormat,
    level: int,
) -> EncodedTensor | None:
    """Encode `new` against `parent` (same length); None if they are equal. Releases the GIL for the most part.

    Raises `ValueError` if the overwrite encoding cannot address the tensor.
    """
    new_checksum: str | None = None
    if encoding is DeltaEncoding.XOR:
        encoded = encode_delta(parent.data, new.data, parent.element_size_bytes, level=level)
        payload, changed_elements = encoded.payload, encoded.changed_elements
        if checksum_format is ChecksumFormat.ADLER32:
            new_checksum = adler32_text(encoded.adler32)  # summed up by the XOR pass on its way
    else:
        payload, changed_elements = _overwrite(parent, new, level)
    if not changed_elements:
        return None
    return EncodedTensor(
        payload,
        changed_elements,
        new_checksum or checksum(checksum_format, new.data.data),
        checksum(checksum_format, parent.data.data),
    )


def _overwrite(parent: NamedTensor, new: NamedTensor, level: int) -> tuple[bytes, int]:
    """Payload of count, byte positions and new bytes; and the number of changed elements."""
    if new.data.nbytes > OVERWRITE_LIMIT_BYTES:
        raise ValueError(
            f"the overwrite encoding addresses {OVERWRITE_LIMIT_BYTES} bytes of a tensor, this one has "
            f"{new.data.nbytes}; publish with the xor encoding"
        )
    positions = np.flatnonzero(parent.data != new.data)
    elements = positions // parent.element_size_bytes
    changed_elements = int(np.count_nonzero(np.diff(elements))) + 1 if positions.size else 0
    content = b"".join(
        (
            positions.size.to_bytes(4, "little"),
            positions.astype("<u4").tobytes(),
            new.data[positions].tobytes(),
        )
    )
    return zstandard.ZstdCompressor(level=level).compress(content), changed_elements
