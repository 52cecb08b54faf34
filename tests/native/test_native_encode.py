"""Delta encoding, read back by libzstd and by our own decoder."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
import zstandard

import native


def pair(size_bytes: int, changes: int, element_size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    parent = random.integers(0, 256, size_bytes, np.uint8)
    new = parent.copy()
    elements = new.view(f"u{element_size}")
    where = random.permutation(elements.size)[:changes]
    elements[where] ^= random.integers(1, 200, changes).astype(elements.dtype)
    return parent, new


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", [1, 3, 5, 9])
def test_payload_count_and_checksum_are_those_of_the_change(element_size: int, threads: int, level: int) -> None:
    parent, new = pair(300_000, 500, element_size, seed=level)
    encoded = native.encode_delta(parent, new, element_size, level=level, frame_bytes=1 << 16, threads=threads)
    assert encoded.changed_elements == 500
    assert encoded.adler32 == zlib.adler32(new)
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(encoded.payload), read_across_frames=True)
    assert reader.read() == (parent ^ new).tobytes()
    decoded = native.decode_sparse(encoded.payload, new.nbytes, element_size)
    applied = parent.view(f"u{element_size}").copy()
    applied[decoded.positions] ^= decoded.masks
    np.testing.assert_array_equal(applied.view(np.uint8), new)
    assert decoded.positions.size == 500


def test_an_empty_tensor_has_no_frame() -> None:
    assert native.encode_delta(b"", b"", 2) == (b"", 0, 1)
    assert native.encode_delta(np.empty(0, np.uint16), np.empty((3, 0), np.uint16), 2) == (b"", 0, 1)
    assert native.decode_sparse(b"", 0, 2).positions.size == 0


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="parent has 3 bytes, new has 4"):
        native.encode_delta(b"abc", b"abcd", 1)
    with pytest.raises(ValueError, match="not a multiple of element_size 2"):
        native.encode_delta(b"abc", b"abd", 2)
    with pytest.raises(ValueError, match="C-contiguous"):
        native.encode_delta(np.zeros((4, 4))[:, ::2], np.zeros((4, 2)), 4)
    with pytest.raises(ValueError, match="frame_bytes"):
        native.encode_delta(b"abcd", b"abdd", 4, frame_bytes=6)


@pytest.mark.parametrize("size_bytes", [0, 8, 4096, 100_008])
def test_the_xor_pass_may_write_over_an_input(size_bytes: int) -> None:
    parent, new = pair(size_bytes, size_bytes // 100, 4, seed=size_bytes)
    expected = parent ^ new
    out = parent.copy()
    changed, checksum = native.xor_count_adler(out, new, out, 4)
    np.testing.assert_array_equal(out, expected)
    assert (changed, checksum) == (size_bytes // 100, zlib.adler32(new))
    with pytest.raises(ValueError, match="equal lengths"):
        native.xor_count_adler(parent, new, np.empty(size_bytes + 1, np.uint8), 4)
    with pytest.raises(BufferError):
        native.xor_count_adler(parent, new, bytes(size_bytes), 4)
