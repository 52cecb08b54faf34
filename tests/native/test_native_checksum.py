"""Adler-32 against zlib."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import native
from native import _core


@pytest.fixture(params=_core.instruction_sets(), autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    _core.use_instruction_set(request.param)
    yield request.param
    _core.use_instruction_set(_core.instruction_sets()[-1])


@pytest.mark.parametrize("size", [0, 1, 15, 16, 63, 64, 65, 5551, 5552, 5553, 100_003, 2_500_001])
@pytest.mark.parametrize("fill", ["random", "0xff", "zero"])
def test_equals_zlib(size: int, fill: str) -> None:
    random = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    data = {"random": random, "0xff": b"\xff" * size, "zero": bytes(size)}[fill]
    assert native.adler32(data) == zlib.adler32(data)
    assert native.adler32(data, 0xFFF0FFF0) == zlib.adler32(data, 0xFFF0FFF0)
    for start in range(1, 9):
        assert native.adler32(memoryview(data)[start:], 77) == zlib.adler32(data[start:], 77)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.binary(max_size=300), second=st.binary(max_size=300))
def test_combine_equals_the_checksum_of_both(first: bytes, second: bytes) -> None:
    combined = native.adler32_combine(zlib.adler32(first), zlib.adler32(second), len(second))
    assert combined == zlib.adler32(first + second)


def test_combine_takes_lengths_beyond_32_bits() -> None:
    zeros = zlib.adler32(bytes(65521))  # A stays 1, so B grows by the length: 0 modulo 65521
    assert native.adler32_combine(zlib.adler32(b"abc"), zeros, 65521 << 40) == zlib.adler32(b"abc")


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
@pytest.mark.parametrize("position_dtype", [np.uint32, np.uint64, np.int64])
@pytest.mark.parametrize("count", [0, 1, 7, 64, 1000, 5000])
def test_correction_leads_from_the_old_checksum_to_the_new(element_size: int, position_dtype: type, count: int) -> None:
    random = np.random.default_rng(count * element_size)
    old = random.integers(0, 256, 40_000, np.uint8).view(f"u{element_size}")
    new = old.copy()
    positions = random.permutation(old.size)[:count]
    new[positions] = random.integers(0, 256, count * element_size, np.uint8).view(new.dtype)
    correction = native.adler32_correction(positions.astype(position_dtype), old[positions], new[positions], old.nbytes)
    assert native.adler32_add(zlib.adler32(old), correction) == zlib.adler32(new)


def test_corrections_of_several_ranks_add_up() -> None:
    random = np.random.default_rng(0)
    old, new = random.integers(0, 65536, (2, 1000)).astype(np.uint16)
    shares = [np.arange(rank, 1000, 3, dtype=np.uint32) for rank in range(3)]
    corrections = [native.adler32_correction(share, old[share], new[share], old.nbytes) for share in shares]
    assert native.adler32_add(zlib.adler32(old), *corrections) == zlib.adler32(new)
    assert native.adler32_add(5) == 5


def test_correction_of_extreme_changes_in_a_huge_tensor() -> None:
    size_bytes = (1 << 41) + 3
    positions = np.arange(5000, dtype=np.uint64) * 7
    old, new = np.zeros(5000, np.uint8), np.full(5000, 255, np.uint8)
    a = 255 * 5000
    b = sum((size_bytes - int(p)) * 255 for p in positions)
    expected = b % 65521 << 16 | a % 65521
    assert native.adler32_correction(positions, old, new, size_bytes) == expected
    far = positions + (1 << 33)
    b_far = sum((size_bytes - int(p)) * 255 for p in far)
    both = np.concatenate([positions, far])  # places on both sides of 2**32
    assert native.adler32_correction(both, np.tile(old, 2), np.tile(new, 2), size_bytes) == native.adler32_add(
        expected, b_far % 65521 << 16 | a % 65521
    )
    minus = (-b) % 65521 << 16 | (-a) % 65521
    assert native.adler32_correction(positions, new, old, size_bytes) == minus


def test_a_million_changes_of_the_largest_size_do_not_overflow() -> None:
    count = (1 << 20) + 5
    positions = np.arange(count, dtype=np.uint32) + np.uint32(0xFFFFFFFF - count)
    old, new = np.zeros(count, np.uint32), np.full(count, 0xFFFFFFFF, np.uint32)
    size_bytes = 1 << 34
    a = 255 * 4 * count
    places = 4 * sum(map(int, positions.tolist())) * 4 + 6 * count  # of all changed bytes
    b = size_bytes * a - 255 * places
    expected = b % 65521 << 16 | a % 65521
    assert native.adler32_correction(positions, old, new, size_bytes) == expected


def test_arrays_that_do_not_fit_are_refused() -> None:
    positions = np.arange(3, dtype=np.uint32)
    with pytest.raises(ValueError, match="below the tensor's 2 elements"):
        native.adler32_correction(positions, np.zeros(3, np.uint16), np.zeros(3, np.uint16), 5)
    with pytest.raises(ValueError, match="as many old and new values as positions: 3, found 2 and 3"):
        native.adler32_correction(positions, np.zeros(2, np.uint8), np.zeros(3, np.uint8), 10)
    with pytest.raises(TypeError, match="one dtype"):
        native.adler32_correction(positions, np.zeros(3, np.uint16), np.zeros(3, np.uint8), 10)
    with pytest.raises(TypeError, match="32- or 64-bit integers"):
        native.adler32_correction(positions.astype(np.float32), np.zeros(3, np.uint8), np.zeros(3, np.uint8), 10)
