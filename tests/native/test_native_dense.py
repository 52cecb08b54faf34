"""Deltas with many nonzero bytes: the decoder changes to dense decoding and back, and nobody can tell."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest
import zstandard
from native_contents import dense_content, sparse_content, text_content

import native
from native import _core


@pytest.fixture(params=_core.instruction_sets(), autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    _core.use_instruction_set(request.param)
    yield request.param
    _core.use_instruction_set(_core.instruction_sets()[-1])


def compress(content: bytes, level: int = 9, **options: object) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(level, **options)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


def assert_decodes_to(payload: bytes, content: bytes, element_size: int = 1) -> None:
    elements = np.frombuffer(content, f"<u{element_size}")
    decoded = native.decode_sparse(payload, len(content), element_size)
    np.testing.assert_array_equal(decoded.positions, np.flatnonzero(elements))
    np.testing.assert_array_equal(decoded.masks, elements[decoded.positions])


def changing_content(size_bytes: int) -> bytes:
    """Stretches of a few blocks of very different density, which repeat parts of each other."""
    parts = []
    for i in range(size_bytes >> 19):
        density = (0.0005, 0.2, 0.01, 0.6)[i % 4]
        parts.append(sparse_content(1 << 19, density, seed=i % 7))
    return b"".join(parts)


@pytest.mark.parametrize("level", [1, 3, 9, 19])
@pytest.mark.parametrize("element_size", [1, 4])
def test_density_that_changes_within_a_frame(level: int, element_size: int) -> None:
    content = changing_content(6 << 20)
    assert_decodes_to(compress(content, level), content, element_size)


@pytest.mark.parametrize("window_log", [10, 14, 17, 19])
def test_windows_smaller_than_the_dense_memory(window_log: int) -> None:
    content = changing_content(8 << 20) + text_content(3 << 20, seed=3)
    assert_decodes_to(compress(content, 6, window_log=window_log), content, 2)


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
@pytest.mark.parametrize("density", [0.002, 0.03, 0.3, 1.0])
def test_matches_reach_back_a_whole_window(density: float, element_size: int) -> None:
    """Pieces of all lengths from up to 8 MiB back, many times what the decoder keeps of its own."""
    random = np.random.default_rng(1)
    source = sparse_content(6 << 20, density, seed=20) if density < 1 else dense_content(6 << 20, seed=20)
    parts = [source]
    for length in 4 * [8, 9, 15, 40, 200, 3000, 70_000, 200_000]:
        at = int(random.integers(0, len(source) - length))
        parts += [source[at : at + length], dense_content(5, seed=length), bytes(300)]
    content = b"".join(parts)
    content += bytes(-len(content) % element_size)
    assert_decodes_to(compress(content, 3, window_log=23, enable_ldm=True, ldm_min_match=8), content, element_size)


def test_matches_reach_back_over_a_long_stretch_of_zeros() -> None:
    """Further than the sparse history's own memory reaches, in a window of 128 MiB."""
    piece = sparse_content(1 << 20, 0.01, seed=21)
    content = piece + bytes(70 << 20) + piece + bytes(30 << 20) + piece
    assert_decodes_to(compress(content, 3, window_log=27, enable_ldm=True), content, 2)


def test_a_dense_block_amid_sparse_ones_is_decoded_densely() -> None:
    """More nonzero bytes in one block than the sparse history holds: literals, runs and copies."""
    for crowd in (dense_content(131_072, seed=22), b"\x05" * 131_072, dense_content(3000, seed=23) * 44):
        content = sparse_content(1 << 20, 0.02, seed=24) + crowd + sparse_content(1 << 20, 0.002, seed=25) + crowd
        for level in (1, 3, 9):
            assert_decodes_to(compress(content, level), content, 1)


def last_block(literals: bytes, sequences: int, tables: list[int], fields: list[tuple[int, int]]) -> bytes:
    """A last block by hand (RFC 8878 section 3.1.1.3), raw literals first.

    `tables`: the byte of modes, then the code of each field in RLE mode. `fields`: value and number of bits, in the
    order in which a decoder reads them.
    """
    stream = "1" + "".join(f"{value:0{bits}b}" for value, bits in fields)
    content = (len(literals) << 4 | 3 << 2).to_bytes(3, "little") + literals
    content += bytes([0x80 | sequences >> 8, sequences & 0xFF, *tables])
    content += int(stream, 2).to_bytes((len(stream) + 7) // 8, "little")
    return (len(content) << 3 | 2 << 1 | 1).to_bytes(3, "little") + content


def offset_field(offset: int) -> tuple[int, int]:
    """Of a new offset: what its code, which is the number of bits, leaves to be said."""
    bits = (offset + 3).bit_length() - 1
    return offset + 3 - (1 << bits), bits


def block_of_one_sequence(literals: bytes, offset: int, match_length: int) -> bytes:
    """65,536 literals at least, then one match of 259 to 514 bytes, its three codes in RLE mode."""
    field = offset_field(offset)
    fields = [field, (match_length - 259, 8), (len(literals) - 65_536, 16)]
    return last_block(literals, 1, [0x54, 35, field[1], 44], fields)


def test_no_match_from_far_back_is_lost_where_the_history_is_nearly_full() -> None:
    """Literals end at every distance from the sparse history's capacity; then comes a match from before its entries."""
    first = dense_content(393_216, seed=31)
    raw = b"".join((131_072 << 3).to_bytes(3, "little") + first[at : at + 131_072] for at in (0, 131_072, 262_144))
    literals = dense_content(130_000, seed=32)
    for length in range(65_536, 130_000, 397):
        last = block_of_one_sequence(literals[:length], len(first) + length - 10_000, 400)
        content = first + literals[:length] + first[10_000:10_400]
        payload = struct.pack("<IBB", 0xFD2FB528, 0, 11 << 3) + raw + last
        assert zstandard.ZstdDecompressor().decompress(payload, max_output_size=len(content)) == content
        assert_decodes_to(payload, content)


def block_of_a_run_and_small_steps(literals: bytes, steps: int, offset: int) -> bytes:
    """A run of 65,536 literals at least and a match, then so many runs of four and a match each.

    All matches are of three bytes and `offset`, whose codes are in RLE mode. Literal lengths go by the predefined table
    (RFC 8878 appendix A): state 60 is code 35, which has 16 bits of its own and reads its next state by six; state 4
    is code 4, which comes after itself by five bits that say 4.
    """
    field = offset_field(offset)
    fields = [(60, 6), field, (len(literals) - 4 * steps - 65_536, 16), (4, 6)]
    fields += [field, (4, 5)] * (steps - 1) + [field]
    return last_block(literals, 1 + steps, [0x14, field[1], 0], fields)


def test_small_steps_behind_a_large_one_do_not_leave_the_history() -> None:
    """Half its capacity is taken, a run fills it or nearly, four literals at a time follow up to its next bucket."""
    literals, steps = dense_content(65_540 + 4 * 1_100, seed=34), 1_100
    run, rest = literals[: -4 * steps], literals[-4 * steps :]
    last = block_of_a_run_and_small_steps(literals, steps, 200_000)  # copies from the zeros before
    tail = run + bytes(3) + b"".join(rest[at : at + 4] + bytes(3) for at in range(0, len(rest), 4))
    zeros = (131_072 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    for taken in range(58_000, 65_500, 250):
        first = dense_content(taken, seed=33) + bytes(131_072 - taken)
        content = first + bytes(2 * 131_072) + tail
        payload = struct.pack("<IBB", 0xFD2FB528, 0, 10 << 3) + (131_072 << 3).to_bytes(3, "little") + first
        payload += 2 * zeros + last
        assert zstandard.ZstdDecompressor().decompress(payload, max_output_size=len(content)) == content
        assert_decodes_to(payload, content)


def test_wide_positions_are_read_back() -> None:
    """In a tensor over 4 GiB, whose first frames are all zero."""
    block_bytes, blocks = 128 << 10, 4 << 13
    zeros = struct.pack("<I", 1 << 1 | block_bytes << 3)[:3] + b"\0"
    last = struct.pack("<I", 1 | 1 << 1 | 8 << 3)[:3] + b"\0"
    leading = struct.pack("<IBB", 0xFD2FB528, 0, 0x38) + zeros * blocks + last
    piece = dense_content(200_000, seed=26)
    content = piece + sparse_content(3 << 20, 0.1, seed=27) + piece
    decoded = native.decode_sparse(leading + compress(content, 3), block_bytes * blocks + 8 + len(content), 2)
    elements = np.frombuffer(content, np.uint16)
    assert decoded.positions.dtype == np.uint64
    np.testing.assert_array_equal(decoded.positions - (block_bytes * blocks + 8) // 2, np.flatnonzero(elements))
    np.testing.assert_array_equal(decoded.masks, elements[np.flatnonzero(elements)])


def test_positions_in_a_frame_of_gigabytes_stay_right() -> None:
    """Past the point where the history counts anew, by a frame whose blocks are repeated by hand."""
    piece = sparse_content(100_000, 0.01, seed=28) + dense_content(400, seed=29)
    body = compress(piece * 3, 3, write_content_size=False, window_log=20)
    blocks, at = [], 6
    while True:
        header = int.from_bytes(body[at : at + 3], "little")
        stored = 1 if header >> 1 & 3 == 1 else header >> 3
        blocks.append((header & ~1).to_bytes(3, "little") + body[at + 3 : at + 3 + stored])
        at += 3 + stored
        if header & 1:
            break
    block_bytes, zero_blocks = 128 << 10, 13 << 11  # 3.25 GiB
    zeros = struct.pack("<I", 1 << 1 | block_bytes << 3)[:3] + b"\0"
    end = struct.pack("<I", 1 | 1 << 1 | 1 << 3)[:3] + b"\0"
    payload = struct.pack("<IBB", 0xFD2FB528, 0, 10 << 3) + zeros * zero_blocks + b"".join(blocks) + end
    decoded = native.decode_sparse(payload, block_bytes * zero_blocks + len(piece) * 3 + 1, 1)
    content = np.frombuffer(piece * 3, np.uint8)
    np.testing.assert_array_equal(decoded.positions - block_bytes * zero_blocks, np.flatnonzero(content))
    np.testing.assert_array_equal(decoded.masks, content[np.flatnonzero(content)])


def test_frames_start_in_the_mode_that_the_last_one_ended_in() -> None:
    dense, sparse = text_content(400_000, seed=1), sparse_content(400_000, 0.001, seed=2)
    payload = b"".join(compress(part) for part in (dense, dense, sparse, sparse, dense))
    assert_decodes_to(payload, dense + dense + sparse + sparse + dense, 1)


def test_raw_and_run_blocks_while_dense() -> None:
    text = text_content(300_000, seed=5)
    content = text + dense_content(300_000, seed=6) + b"\x07" * 300_000 + bytes(300_000) + text
    assert_decodes_to(compress(content, 9, window_log=21), content, 1)


def test_short_offsets_repeat_their_pattern() -> None:
    parts = [text_content(200_000, seed=7)]
    for period in [*range(1, 40), 63, 64, 65]:
        unit = dense_content(period, seed=period)
        parts += [unit * (3000 // period), dense_content(50, seed=period + 100)]
    content = b"".join([*parts, text_content(200_000, seed=8)])
    for level in (1, 5, 19):
        assert_decodes_to(compress(content, level), content, 1)


def with_checksum(content: bytes) -> bytes:
    return compress(content, 3, write_checksum=True)


def test_checksums_of_dense_frames_are_verified_and_others_counted() -> None:
    dense, sparse = text_content(600_000, seed=9), sparse_content(600_000, 0.001, seed=9)
    payload = with_checksum(sparse + dense) + with_checksum(dense)
    decoded = native.decode_many([native.DecodeJob("t", payload, 1_800_000, 1)], threads=1)[0]
    assert (decoded.verified_checksums, decoded.unverified_checksums) == (1, 1)
    job = native.DecodeJob("t", with_checksum(sparse), 600_000, 1)
    decoded = native.decode_many([job], threads=1)[0]
    assert (decoded.verified_checksums, decoded.unverified_checksums) == (0, 1)


def test_a_wrong_checksum_of_a_dense_frame_is_an_error() -> None:
    dense = text_content(600_000, seed=10)
    payload = bytearray(with_checksum(dense) * 2)
    payload[-1] ^= 1
    with pytest.raises(native.DecodeError, match="content checksum does not match"):
        native.decode_sparse(payload, 1_200_000, 1)


def test_a_frame_longer_than_its_content_size_is_rejected_while_dense() -> None:
    text = text_content(500_000, seed=11)
    payload = bytearray(compress(text, 3, window_log=17))
    assert payload[4] & 0xE0 == 0x80  # a window, and a content size of four bytes
    payload[6:10] = (300_000).to_bytes(4, "little")
    with pytest.raises(native.DecodeError, match="expected 300000"):
        native.decode_sparse(bytes(payload), 300_000, 1)
