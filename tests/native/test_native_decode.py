"""The sparse decoder against libzstd (through `zstandard`), the oracle that we did not write."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_contents import CONTENTS, parameter_grid, sparse_content, text_content

import native
from native import _core


@pytest.fixture(params=_core.instruction_sets(), autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test here runs once with each instruction set that the processor has."""
    _core.use_instruction_set(request.param)
    yield request.param
    _core.use_instruction_set(_core.instruction_sets()[-1])


SKIPPABLE = struct.pack("<II", 0x184D2A53, 5) + b"hello"


def assert_decodes_to(payload: bytes, content: bytes, element_size: int = 1) -> None:
    """Checks positions and masks against numpy's view of the dense content."""
    elements = np.frombuffer(content, f"<u{element_size}")
    expected = np.flatnonzero(elements)
    decoded = native.decode_sparse(payload, len(content), element_size)
    assert decoded.positions.dtype == np.uint32
    assert decoded.masks.dtype == np.dtype(f"u{element_size}")
    np.testing.assert_array_equal(decoded.positions, expected)
    np.testing.assert_array_equal(decoded.masks, elements[expected])


def compress(content: bytes, level: int = 3, **options: object) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(level, **options)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


@pytest.mark.parametrize("content_of", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize(
    "parameters",
    [pair[1] for pair in parameter_grid()],
    ids=[pair[0].replace(" ", "_") for pair in parameter_grid()],
)
def test_every_compression_of_every_content_decodes_to_it(
    parameters: zstandard.ZstdCompressionParameters, content_of: Callable[[int, int], bytes]
) -> None:
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    for size, seed in ((0, 0), (1, 1), (255, 2), (3000, 3), (200_000, 4)):
        content = content_of(size, seed)
        assert_decodes_to(compressor.compress(content), content)


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
@pytest.mark.parametrize("density", [0.0001, 0.01, 0.3])
def test_bytes_of_one_element_are_merged(element_size: int, density: float) -> None:
    content = sparse_content(800_000, density, seed=element_size)
    assert_decodes_to(compress(content), content, element_size)


def test_elements_that_straddle_blocks_and_frames_are_merged() -> None:
    content = text_content(4096, seed=5)
    frames = b"".join(compress(content[i : i + 37]) for i in range(0, len(content), 37))
    assert_decodes_to(frames, content, element_size=8)


def test_content_larger_than_the_window_slides_the_history() -> None:
    content = b"".join(sparse_content(1 << 20, 0.05, seed) for seed in range(6))
    for window_log in (10, 15, 19):
        assert_decodes_to(compress(content, level=7, window_log=window_log), content, 2)


def test_a_long_sparse_frame_slides_the_history() -> None:
    content = b"".join(sparse_content(1 << 20, 0.0005, seed % 7) for seed in range(100))
    assert_decodes_to(compress(content, level=1), content, 1)
    assert_decodes_to(compress(content, level=3, enable_ldm=True, window_log=23), content, 4)


def test_many_frames_with_skippable_and_empty_ones_between() -> None:
    parts = [sparse_content(size, 0.01, size) for size in (1000, 0, 1, 200_000, 65_536)]
    payload = SKIPPABLE + b"".join(compress(part) + SKIPPABLE for part in parts)
    assert_decodes_to(payload, b"".join(parts))


def test_streamed_frames_without_content_size() -> None:
    content = sparse_content(500_000, 0.002, seed=8)
    writer = zstandard.ZstdCompressor(level=3).compressobj()
    payload = (
        b"".join(writer.compress(content[i : i + 70_000]) for i in range(0, len(content), 70_000)) + writer.flush()
    )
    assert_decodes_to(payload, content, 2)


def test_blocks_flushed_early_repeat_tables_and_trees() -> None:
    content = text_content(200_000, seed=9)
    writer = zstandard.ZstdCompressor(level=6).compressobj()
    pieces = []
    for i in range(0, len(content), 2_000):
        pieces += [writer.compress(content[i : i + 2_000]), writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    assert_decodes_to(b"".join([*pieces, writer.flush()]), content, 4)


def test_raw_and_run_blocks() -> None:
    def block(kind: int, size: int, stored: bytes, last: bool) -> bytes:
        return struct.pack("<I", last | kind << 1 | size << 3)[:3] + stored

    frame = struct.pack("<IBB", 0xFD2FB528, 0, 0x38)  # window 128 KiB, no content size
    frame += block(0, 5, b"\0ab\0c", False) + block(1, 70_000, b"\0", False) + block(1, 9, b"x", True)
    assert_decodes_to(frame, b"\0ab\0c" + bytes(70_000) + b"x" * 9, 1)


def test_a_frame_with_content_beyond_four_gibibytes_gives_wide_positions() -> None:
    # Run blocks of zeros: 5 GiB of content in 160 KB.
    block_bytes, blocks = 128 << 10, 5 << 13
    frame = struct.pack("<IBB", 0xFD2FB528, 0, 0x38)
    zeros = struct.pack("<I", 1 << 1 | block_bytes << 3)[:3] + b"\0"
    ones = struct.pack("<I", 1 | 1 << 1 | 3 << 3)[:3] + b"\1"
    decoded = native.decode_sparse(frame + zeros * blocks + ones, block_bytes * blocks + 4 - 1, 1)
    assert decoded.positions.dtype == np.uint64
    start = block_bytes * blocks
    assert decoded.positions.tolist() == [start, start + 1, start + 2]
    assert decoded.masks.tolist() == [1, 1, 1]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    pieces=st.lists(
        st.tuples(st.sampled_from([b"\0", b"\1", b"ab", b"\0\0\7", b"xyz\0"]), st.integers(1, 5000)),
        max_size=12,
    ),
    level=st.integers(-5, 19),
    element_size=st.sampled_from([1, 2, 4]),
)
def test_any_content_of_runs_decodes_to_itself(pieces: list[tuple[bytes, int]], level: int, element_size: int) -> None:
    content = b"".join(unit * count for unit, count in pieces)
    content += bytes(-len(content) % element_size)
    assert_decodes_to(compress(content, level), content, element_size)


def mutated(payload: bytes, random: np.random.Generator) -> bytes:
    data = bytearray(payload)
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(0, min(len(data), 400) if random.integers(0, 2) else len(data)))
        data[at] = random.integers(0, 256)
    return bytes(data)


@pytest.mark.parametrize("level", [1, 3, 9, 19])
def test_mutated_payloads_are_rejected_or_decode_as_libzstd_decodes_them(level: int) -> None:
    random = np.random.default_rng(level)
    content = sparse_content(60_000, 0.01, seed=level) + text_content(20_000, seed=level)
    payload = compress(content, level)
    accepted = 0
    for _ in range(1500):
        damaged = mutated(payload, random)
        try:
            oracle = zstandard.ZstdDecompressor().decompress(damaged, max_output_size=1 << 20, allow_extra_data=False)
            decoded = native.decode_sparse(damaged, len(oracle), 1)
        except (zstandard.ZstdError, native.DecodeError):
            continue
        accepted += 1
        np.testing.assert_array_equal(decoded.positions, np.flatnonzero(np.frombuffer(oracle, np.uint8)))
        np.testing.assert_array_equal(decoded.masks, np.frombuffer(oracle, np.uint8)[decoded.positions])
    assert accepted > 0


@pytest.mark.parametrize("cut", [1, 4, 5, 20, 200, -1])
def test_a_truncated_payload_is_named_as_such(cut: int) -> None:
    payload = compress(sparse_content(100_000, 0.01, seed=1))
    with pytest.raises(native.DecodeError, match=r"at byte \d+: the input is truncated"):
        native.decode_sparse(payload[:cut], 100_000, 1)


def test_wrong_lengths_say_what_was_expected_and_found() -> None:
    payload = compress(bytes(1000))
    with pytest.raises(native.DecodeError, match="expected 1001, found 1000"):
        native.decode_sparse(payload, 1001, 1)
    with pytest.raises(native.DecodeError, match="expected 999, found 1000"):
        native.decode_sparse(payload, 999, 1)
    with pytest.raises(native.DecodeError, match="not a multiple of its element size 2"):
        native.decode_sparse(payload, 1001, 2)
    with pytest.raises(native.DecodeError, match="expected 1000, found 0"):
        native.decode_sparse(b"", 1000, 1)


def test_bytes_after_the_last_frame_are_rejected() -> None:
    payload = compress(bytes(1000))
    with pytest.raises(native.DecodeError, match=f"at byte {len(payload)}: expected a zstd or skippable frame"):
        native.decode_sparse(payload + b"tail", 1000, 1)


def test_a_frame_that_needs_a_dictionary_is_rejected() -> None:
    samples = [text_content(2000, seed) for seed in range(50)]
    dictionary = zstandard.train_dictionary(8192, samples)
    payload = zstandard.ZstdCompressor(dict_data=dictionary).compress(samples[0])
    with pytest.raises(native.DecodeError, match="needs a dictionary"):
        native.decode_sparse(payload, 2000, 1)


def test_a_window_over_the_limit_is_rejected() -> None:
    writer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    ).compressobj()
    payload = writer.compress(bytes(1000)) + writer.flush()
    with pytest.raises(native.DecodeError, match=f"expected {1 << 20}, found {1 << 24}"):
        native.decode_sparse(payload, 1000, 1, max_window_bytes=1 << 20)
    assert native.decode_sparse(payload, 1000, 1).positions.size == 0


def test_a_content_checksum_is_skipped_not_taken_for_a_frame() -> None:
    content = sparse_content(5000, 0.01, seed=3)
    payload = compress(content, write_checksum=True)
    assert payload[-4:] == struct.pack("<I", xxhash.xxh64_intdigest(content) & 0xFFFFFFFF)
    assert_decodes_to(payload, content)


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="instruction set sse9 is not available"):
        _core.use_instruction_set("sse9")
    with pytest.raises(ValueError, match="element_size: expected 1, 2, 4 or 8, found 3"):
        native.decode_sparse(b"", 0, 3)
    with pytest.raises(ValueError, match="max_window_bytes"):
        native.decode_sparse(b"", 0, 1, max_window_bytes=1 << 31)
    with pytest.raises(ValueError, match="not C-contiguous"):
        native.decode_sparse(np.zeros((4, 4), np.uint8)[:, ::2], 0, 1)
