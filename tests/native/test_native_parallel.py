"""Many payloads on several threads, and payloads that are still arriving."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from native_contents import sparse_content, text_content

import native


def frames_of(content: bytes, frame_bytes: int, **options: object) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, **options)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    parts = range(0, max(len(content), 1), frame_bytes)
    return b"".join(compressor.compress(content[i : i + frame_bytes]) for i in parts)


def assert_same(left: native.SparseXor, right: native.SparseXor) -> None:
    for name in native.SparseXor._fields:
        assert getattr(left, name).dtype == getattr(right, name).dtype
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


JOBS = [
    native.DecodeJob("many frames", frames_of(sparse_content(40 << 20, 0.001, 1), 1 << 20), 40 << 20, 2),
    native.DecodeJob("straddling", frames_of(sparse_content(30 << 20, 0.01, 2), (9 << 20) + 1), 30 << 20, 4),
    native.DecodeJob("one frame", frames_of(sparse_content(20 << 20, 0.001, 3), 1 << 30), 20 << 20, 1),
    native.DecodeJob(
        "unknown sizes",
        frames_of(sparse_content(20 << 20, 0.001, 4), 1 << 20, write_content_size=False),
        20 << 20,
        1,
    ),
    native.DecodeJob("empty", b"", 0, 2),
    native.DecodeJob("dense", frames_of(text_content(3 << 20, 5), 1 << 20), 3 << 20, 8),
]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_are_those_of_decoding_one_by_one(threads: int) -> None:
    for job, decoded in zip(JOBS, native.decode_many(JOBS, threads=threads), strict=True):
        assert_same(decoded.xor, native.decode_sparse(job.payload, job.size_bytes, job.element_size))


def test_cores_are_reserved_and_no_jobs_are_no_work() -> None:
    assert native.decode_many([]) == []
    decoded = native.decode_many(JOBS[:1], reserve_cores=1000, niceness=0)
    assert decoded[0].xor.positions.size > 0


def test_a_failure_names_its_job_and_its_byte_in_the_payload() -> None:
    good = JOBS[0]
    damaged = bytearray(good.payload)
    damaged[-3] ^= 0xFF
    at = len(damaged) - len(frames_of(sparse_content(40 << 20, 0.001, 1)[-(1 << 20) :], 1 << 20))
    with pytest.raises(native.DecodeError, match=r"layer\.7: at byte \d+") as error:
        native.decode_many([good, good._replace(name="layer.7", payload=damaged)], threads=2)
    assert int(str(error.value).split("byte ")[1].split(":")[0]) >= at
    with pytest.raises(native.DecodeError, match=r"short: at byte .*truncated"):
        native.decode_many([good._replace(name="short", payload=good.payload[:-1])])
    with pytest.raises(native.DecodeError, match=r"long: at byte"):
        native.decode_many([good._replace(name="long", size_bytes=good.size_bytes + 2)])
    with pytest.raises(native.DecodeError, match=r"odd: .*not a multiple"):
        native.decode_many([good._replace(name="odd", size_bytes=good.size_bytes + 1)])


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_payload_may_arrive_in_pieces(job: native.DecodeJob) -> None:
    arriving = bytearray(len(job.payload))
    decoder = native.StreamDecoder(arriving, job.size_bytes, job.element_size)
    decoded_bytes = 0
    for end in [*range(0, len(arriving), 7919), len(arriving)]:
        arriving[:end] = job.payload[:end]
        before, decoded_bytes = decoded_bytes, decoder.advance(end)
        assert before <= decoded_bytes <= job.size_bytes
    assert decoded_bytes == job.size_bytes
    assert_same(decoder.finish(), native.decode_sparse(job.payload, job.size_bytes, job.element_size))
    with pytest.raises(ValueError, match="handed over already"):
        decoder.finish()


def test_a_damaged_block_is_reported_as_it_arrives() -> None:
    payload = bytearray(frames_of(text_content(1 << 20, 6), 1 << 30))
    payload[5000:5100] = b"\xff" * 100
    decoder = native.StreamDecoder(payload, 1 << 20, 1)
    assert decoder.advance(1000) == 0
    with pytest.raises(native.DecodeError, match="at byte"):
        decoder.advance(len(payload) // 2)
    with pytest.raises(native.DecodeError, match="at byte"):
        decoder.finish()
    with pytest.raises(ValueError, match="available: at most"):
        native.StreamDecoder(b"abc", 1, 1).advance(4)
