"""Writes the fuzzers' seed corpus: small zstd streams of every kind, made by libzstd.

python native/fuzz/make_corpus.py FOLDER
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import zstandard


def contents() -> Iterator[bytes]:
    random = np.random.default_rng(1)
    for size_bytes in (1, 300, 5_000, 40_000, 150_000):
        for density in (0.0, 0.001, 0.02, 0.3):
            values = random.choice(np.array([1, 1, 3, 7, 0x80], np.uint8), size_bytes)
            yield np.where(random.random(size_bytes) < density, values, 0).astype(np.uint8).tobytes()
    yield random.integers(0, 256, 2_000, np.uint8).tobytes()
    yield (random.zipf(1.5, 8_000) % 256).astype(np.uint8).tobytes()
    yield b"abcabcdabcde" * 500 + bytes(70_000) + b"abcabcdabcde" * 300
    yield b"\x07" * 3_000
    # Matches that reach behind what the decoder keeps: amid many nonzero bytes, and amid few.
    far, unit = random.integers(0, 256, 3_000, np.uint8).tobytes(), random.integers(0, 256, 500, np.uint8).tobytes()
    yield far + unit * 1_500 + far[500:] + unit * 300 + far
    yield bytes(200_000) + unit * 1_500 + bytes(900_000) + far + unit * 2 + bytes(200_000) + far


def streams() -> Iterator[bytes]:
    for content in contents():
        for level in (-3, 1, 3, 5, 9, 19):
            yield zstandard.ZstdCompressor(level=level, write_checksum=level == 3).compress(content)
        writer = zstandard.ZstdCompressor(level=6).compressobj()
        pieces = []
        for start in range(0, min(len(content), 20_000), 1_000):
            pieces += [writer.compress(content[start : start + 1_000]), writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
        yield b"".join([*pieces, writer.flush()])
    yield struct.pack("<II", 0x184D2A50, 4) + b"skip" + zstandard.compress(b"after a skippable frame")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, stream in enumerate(streams()):
        if len(stream) <= 16_384:
            (folder / f"seed_{number:03d}").write_bytes(stream)


if __name__ == "__main__":
    main()
