"""Trainer-shaped XOR content: what a small update of fp32 master weights changes in their published bytes.

The bytes of changed elements are taken from real rounding: master weights ~ N(0, 0.02), an update ~ N(0, s), both
serialised to the published type and XORed. Which elements change is random: uniformly, or in clusters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from native.encode import encode_delta

POOL_ELEMENTS = 1 << 21
CLUSTER_BYTES = 4096
CLUSTER_SHARE = 16  # one cluster in so many changes, so many times as densely


class Fixture(NamedTuple):
    """name says type, density, spread and level; payload decodes to size_bytes of XOR content."""

    name: str
    payload: bytes
    size_bytes: int
    element_size: int
    changed_elements: int


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even, as trainers serialise."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_fp8(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """e4m3 with one scale a tensor: largest magnitude 448, subnormals below 2**-6."""
    scaled = values * np.float32(448 / 0.095)
    magnitude = np.minimum(np.abs(scaled), 448).astype(np.float32)
    bits = magnitude.view(np.uint32)
    normal = ((bits + np.uint32(0x7FFFF) + ((bits >> 20) & 1)) >> 20).astype(np.int32) - (120 << 3)
    code = np.where(magnitude < 2**-6, np.rint(magnitude * 512).astype(np.int32), normal)
    signed: NDArray[np.uint8] = (code | ((scaled < 0).astype(np.int32) << 7)).astype(np.uint8)
    return signed


SERIALISE: dict[str, Any] = {"bf16": to_bf16, "fp8": to_fp8}


def changed_masks(kind: str, density: float) -> NDArray[Any]:
    """XOR masks of the elements that an update changes, whose size is such that `density` of all change."""
    random = np.random.default_rng(1)
    weights = random.standard_normal(POOL_ELEMENTS, np.float32) * np.float32(0.02)
    update = random.standard_normal(POOL_ELEMENTS, np.float32)
    before = SERIALISE[kind](weights)
    low, high = 1e-10, 1e-1
    for _ in range(14):
        scale = (low * high) ** 0.5
        masks = before ^ SERIALISE[kind](weights + update * np.float32(scale))
        low, high = (scale, high) if np.count_nonzero(masks) < density * POOL_ELEMENTS else (low, scale)
    changed: NDArray[Any] = masks[masks != 0]
    return changed


def make_content(pool: NDArray[Any], density: float, size_bytes: int, *, clustered: bool, seed: int) -> NDArray[Any]:
    """size_bytes of XOR content in elements of the pool's type, `density` of which are masks from the pool."""
    random = np.random.default_rng(seed)
    elements = size_bytes // pool.itemsize
    count = int(elements * density)
    if clustered:
        width = CLUSTER_BYTES // pool.itemsize
        clusters = random.permutation(elements // width)[: max(1, elements // width // CLUSTER_SHARE)]
        positions = random.choice(clusters, count) * width + random.integers(0, width, count)
    else:
        positions = random.integers(0, elements, count)
    content = np.zeros(elements, pool.dtype)
    content[positions] = random.choice(pool, count)
    return content


def compress(content: NDArray[Any], level: int | None) -> bytes:
    """As one frame of a plain level, or (None) by encode_delta's defaults."""
    if level is None:
        parent = np.zeros(content.nbytes, np.uint8)
        return encode_delta(parent, content.view(np.uint8), content.itemsize).payload
    parameters = zstandard.ZstdCompressionParameters.from_level(level, source_size=content.nbytes)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content.view(np.uint8).data)


class Recipe(NamedTuple):
    """A fixture not made yet. level None: encode_delta's defaults."""

    kind: str
    density: float
    level: int | None
    size_bytes: int
    clustered: bool = False

    @property
    def name(self) -> str:
        spread = "clustered" if self.clustered else "uniform"
        level = "default" if self.level is None else f"level {self.level}"
        return f"{self.kind} {self.density * 100:g}% {spread} {level}"

    def make(self) -> Fixture:
        pool = changed_masks(self.kind, self.density)
        content = make_content(pool, self.density, self.size_bytes, clustered=self.clustered, seed=0)
        payload = compress(content, self.level)
        return Fixture(self.name, payload, content.nbytes, content.itemsize, int(np.count_nonzero(content)))
