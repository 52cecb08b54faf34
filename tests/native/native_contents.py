"""Contents and compressions that exercise every part of the zstd format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import zstandard


def sparse_content(size_bytes: int, density: float, seed: int) -> bytes:
    random = np.random.default_rng(seed)
    content = np.zeros(size_bytes, np.uint8)
    count = int(size_bytes * density)
    values = random.choice(np.array([1, 1, 1, 3, 7, 0x80, 0x0F, 0x55], np.uint8), count)
    content[random.integers(0, max(size_bytes, 1), count)] = values
    return content.tobytes()


def text_content(size_bytes: int, seed: int) -> bytes:
    random = np.random.default_rng(seed)
    words = [random.integers(97, 123, random.integers(2, 9)).astype(np.uint8).tobytes() + b" " for _ in range(400)]
    text = b"".join(words[i] for i in random.zipf(1.3, size_bytes // 4 + 1) % len(words))
    return text[:size_bytes]


def dense_content(size_bytes: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8).tobytes()


def repeating_content(size_bytes: int, seed: int) -> bytes:
    """Sparse stretches that come back far later: matches copy nonzero bytes, also overlapping ones."""
    period = np.frombuffer(sparse_content(size_bytes // 5 + 1, 0.01, seed), np.uint8)
    content = np.tile(period, 5)[:size_bytes].copy()
    content[size_bytes // 2 : size_bytes // 2 + 3000] = np.resize(np.array([7, 0, 0], np.uint8), 3000)[
        : max(0, min(3000, size_bytes - size_bytes // 2))
    ]
    return content.tobytes()


CONTENTS: dict[str, Callable[[int, int], bytes]] = {
    "zero": lambda size, seed: bytes(size),
    "one_in_a_thousand": lambda size, seed: sparse_content(size, 0.001, seed),
    "one_in_fifty": lambda size, seed: sparse_content(size, 0.02, seed),
    "one_in_three": lambda size, seed: sparse_content(size, 0.33, seed),
    "dense": dense_content,
    "text": text_content,
    "repeating": repeating_content,
    "one_value": lambda size, seed: b"\x05" * size,
}


STRATEGIES = [
    zstandard.STRATEGY_FAST,
    zstandard.STRATEGY_DFAST,
    zstandard.STRATEGY_GREEDY,
    zstandard.STRATEGY_LAZY,
    zstandard.STRATEGY_LAZY2,
    zstandard.STRATEGY_BTLAZY2,
    zstandard.STRATEGY_BTOPT,
    zstandard.STRATEGY_BTULTRA,
    zstandard.STRATEGY_BTULTRA2,
]


def parameter_grid() -> Iterator[tuple[str, zstandard.ZstdCompressionParameters]]:
    """Levels, strategies, window logs and frame options, each with a name."""
    from_level = zstandard.ZstdCompressionParameters.from_level
    for level in (-5, -1, 1, 2, 3, 5, 7, 9, 12, 16, 19, 22):
        yield f"level {level}", from_level(level, window_log=min(from_level(level).window_log, 23))
    for strategy in STRATEGIES:
        yield f"strategy {strategy}", from_level(5, strategy=strategy)
    for window_log in (10, 11, 13, 17, 20, 24, 27):
        yield f"window log {window_log}", from_level(6, window_log=window_log)
    yield "checksum", from_level(3, write_checksum=True)
    yield "no content size", from_level(3, write_content_size=False)
    yield "long distance", from_level(3, enable_ldm=True, window_log=24)
    yield "short matches", from_level(6, min_match=3, strategy=zstandard.STRATEGY_BTOPT)
