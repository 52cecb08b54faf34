"""Payloads: libzstd's output in every shape is decoded, and every bound is checked before decoding."""

import struct

import numpy as np
import pytest
import zstandard
from format_writer import overwrite_payload, xor_payload
from hypothesis import given, settings
from hypothesis import strategies as st

from sync.errors import PublicationError, Rejection
from sync.format import decode_overwrite, decode_xor

SKIPPABLE = b"\x53\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"


def compress(content: bytes, **settings: object) -> bytes:
    return zstandard.ZstdCompressor(**settings).compress(content)


def streamed(content: bytes) -> bytes:
    """A frame without a content size in its header."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(content) + compressor.flush()


def rejection_of(payload: bytes, size_bytes: int, decode=decode_xor) -> PublicationError:
    with pytest.raises(PublicationError) as raised:
        decode(payload, size_bytes)
    return raised.value


@given(
    pieces=st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    level=st.sampled_from([-5, 1, 3, 9, 19]),
    checksum=st.booleans(),
    stream=st.booleans(),
    skippable=st.booleans(),
)
def test_any_frames_decode_to_what_was_compressed(pieces, level, checksum, stream, skippable):
    payload = b"".join(
        (SKIPPABLE if skippable else b"")
        + (streamed(piece) if stream else compress(piece, level=level, write_checksum=checksum))
        for piece in pieces
    )
    content = b"".join(pieces)
    assert decode_xor(payload, len(content)).tobytes() == content


@pytest.mark.parametrize("level", [1, 5, 19])
def test_large_sparse_and_dense_contents_decode(level):
    rng = np.random.default_rng(level)
    sparse = np.zeros(3_000_000, np.uint8)
    sparse[rng.integers(0, sparse.size, 3000)] = rng.integers(1, 256, 3000)
    for content in (sparse, rng.integers(0, 256, 300_000, np.uint8), np.zeros(2_000_000, np.uint8)):
        assert np.array_equal(decode_xor(compress(content.tobytes(), level=level), content.size), content)


@given(st.data())
@settings(max_examples=300)
def test_mutated_payload_is_rejected_or_has_the_right_length(data):
    payload = bytearray(xor_payload(bytes(500), bytes(range(250)) * 2))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    del payload[data.draw(st.integers(len(payload) // 2, len(payload))) :]
    try:
        decoded = decode_xor(bytes(payload), 500)
    except PublicationError:
        return
    assert decoded.size == 500


@pytest.mark.parametrize("make", [compress, streamed])
@pytest.mark.parametrize("size_bytes", [0, 999, 1001])
def test_wrong_decoded_length_is_rejected_with_numbers(make, size_bytes):
    error = rejection_of(make(bytes(1000)), size_bytes)
    assert error.rejection is Rejection.WRONG_LENGTH
    assert str(size_bytes) in str(error)


def test_length_is_checked_before_memory_is_taken():
    # A frame that claims 2^60 bytes: a decoder that believes it would die.
    bomb = b"\x28\xb5\x2f\xfd\xc0\x38" + struct.pack("<Q", 1 << 60) + b"\x03\x00\x00\x00"
    assert rejection_of(bomb, 1000).rejection is Rejection.WRONG_LENGTH
    unsized = streamed(bytes(50_000_000))
    assert len(unsized) < 10_000
    assert rejection_of(unsized, 1000).rejection is Rejection.WRONG_LENGTH


def test_trailing_bytes_after_the_last_frame_are_rejected():
    error = rejection_of(compress(bytes(100)) + b"xyz", 100)
    assert error.rejection is Rejection.TRAILING_BYTES
    assert "3 bytes" in str(error)


@pytest.mark.parametrize("payload", [b"", b"no frame at all", SKIPPABLE])
def test_payload_without_a_frame_is_rejected(payload):
    assert rejection_of(payload, 100).rejection is Rejection.BAD_FRAME


@given(st.integers(1, 60))
def test_frame_that_is_cut_off_is_rejected(cut_bytes):
    payload = compress(bytes(range(100)), write_checksum=True)
    cut = payload[: max(1, len(payload) - cut_bytes)]
    assert rejection_of(cut, 100).rejection is Rejection.BAD_FRAME


def test_frame_that_needs_a_dictionary_is_rejected():
    trained = zstandard.train_dictionary(4096, [bytes([i % 7, i % 11, i % 13]) * 40 for i in range(2000)])
    payload = compress(bytes(100), dict_data=trained)
    error = rejection_of(payload, 100)
    assert error.rejection is Rejection.NEEDS_DICTIONARY
    assert str(trained.dict_id()) in str(error)


def test_frame_that_needs_too_large_a_window_is_rejected():
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    error = rejection_of(compressor.compress(bytes(1000)) + compressor.flush(), 1000)
    assert error.rejection is Rejection.WINDOW_TOO_LARGE
    assert str(1 << 28) in str(error)


@given(
    st.binary(min_size=1, max_size=300).flatmap(
        lambda old: st.tuples(st.just(old), st.binary(min_size=len(old), max_size=len(old)))
    )
)
def test_overwrite_of_a_public_trainer_turns_parent_into_new(change):
    parent, new = change
    decoded = decode_overwrite(overwrite_payload(parent, new), len(parent))
    patched = np.frombuffer(parent, np.uint8).copy()
    patched[decoded.positions] = decoded.values
    assert patched.tobytes() == new
    assert (np.diff(decoded.positions.astype(np.int64)) > 0).all()


def overwrite(positions: list[int], values: bytes, count: int | None = None) -> bytes:
    head = struct.pack("<I", len(positions) if count is None else count)
    return compress(head + struct.pack(f"<{len(positions)}I", *positions) + values)


def test_unsorted_positions_come_out_sorted_with_their_values():
    decoded = decode_overwrite(overwrite([7, 2, 5], b"abc"), 10)
    assert decoded.positions.tolist() == [2, 5, 7]
    assert decoded.values.tobytes() == b"bca"


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (overwrite([2, 2], b"aa"), "position 2 appears more than once"),
        (overwrite([9, 3, 9], b"abc"), "position 9 appears more than once"),
        (overwrite([10], b"a"), "beyond the tensor's 10 bytes"),
        (overwrite([1, 2], b"a"), "2 changed bytes need 14 bytes, decoded to 13"),
        (overwrite([1, 2], b"abc"), "decoded to 15"),
        (overwrite([], b"", count=0xFFFFFFFF), "4294967295 changed bytes"),
        (compress(b"abc"), "too short for a count"),
    ],
)
def test_bad_overwrite_is_rejected_with_numbers(payload, told):
    error = rejection_of(payload, 10, decode_overwrite)
    assert error.rejection is Rejection.BAD_OVERWRITE
    assert told in str(error)


def test_overwrite_of_nothing_and_of_several_frames():
    assert decode_overwrite(overwrite([], b""), 10).positions.size == 0
    content = struct.pack("<I3I", 3, 1, 2, 3) + b"xyz"
    several = compress(content[:7]) + compress(content[7:])
    assert decode_overwrite(several, 10).values.tobytes() == b"xyz"
