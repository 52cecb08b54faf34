"""Shard files: what a public trainer writes comes out as views; every broken file is rejected by name."""

import json
import struct

import numpy as np
import pytest
import xxhash
from format_writer import CHECKSUMS, anchor_files, delta_files, payload_file, safetensors_file, xor_payload
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load as reference_load

from sync.errors import PublicationError, Rejection
from sync.format import fetch_anchor_shard, fetch_shard, read_checksums, read_manifest
from sync.format.safetensors_header import LENGTH_PREFIX_BYTES, header_length, parse_header
from sync.types import Checksum, ChecksumFormat

FILE = "model-00000-of-00001.safetensors"
KEY = f"weight_v000007/{FILE}"
CHANGES = {"a.weight": (bytes(64), bytes([1]) * 64), "b.weight": (bytes(32), bytes([2]) * 32)}


def rejection_of(place, content: bytes, *, digest: str | None = None) -> PublicationError:
    """What `fetch_shard` says to version 7 when its only file has `content`."""
    files = delta_files(7, 6, CHANGES)
    if digest is not None:
        index = json.loads(files["weight_v000007/model.safetensors.index.json"])
        index["metadata"] |= {"payload_digest_format": "xxh3-64", "payload_digests": {FILE: digest}}
        files["weight_v000007/model.safetensors.index.json"] = json.dumps(index).encode()
    place.put_all({**files, KEY: content})
    manifest = read_manifest(place.store, 7)
    with pytest.raises(PublicationError) as raised:
        fetch_shard(place.store, manifest, FILE)
    assert (raised.value.version, raised.value.file) == (7, FILE)
    return raised.value


def good_file() -> bytes:
    return delta_files(7, 6, CHANGES)[KEY]


def edited(**tensors: object) -> bytes:
    """The good file with header entries replaced (None: removed); the data stays."""
    content = good_file()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length]) | tensors
    return safetensors_file({k: v for k, v in header.items() if v is not None}, content[8 + length :])


def test_shards_of_a_public_trainer_come_out_as_views(place):
    place.put_all(delta_files(7, 6, CHANGES, file_count=2))
    manifest = read_manifest(place.store, 7)
    found = {}
    for file in manifest.files:
        shard = fetch_shard(place.store, manifest, file)
        for name, payload, checksum in shard:
            found[name] = (bytes(payload), checksum)
            assert payload.obj is shard.buffer.obj
    assert found == {name: (xor_payload(*change), CHECKSUMS["xxh3-128"](change[1])) for name, change in CHANGES.items()}


def test_anchor_tensors_carry_dtype_shape_and_checksums_of_either_key(place):
    files = anchor_files(3, {"a": b"abcd", "b": b"efghij", "c": b"kl"})
    key = "weight_v000003/model-00001-of-00001.safetensors"
    content = files[key]
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] |= {"a": "0123abcd", "mx.adler32:b": "00000001"}
    place.put_all({**files, key: safetensors_file(header, content[8 + length :])})
    manifest = read_manifest(place.store, 3)
    shard = fetch_anchor_shard(place.store, manifest, manifest.files[0])
    assert [(t.name, t.dtype, t.shape, bytes(t.data)) for t in shard] == [
        ("a", "BF16", (2,), b"abcd"),
        ("b", "BF16", (3,), b"efghij"),
        ("c", "BF16", (1,), b"kl"),
    ]
    known = {
        "a": Checksum(ChecksumFormat.ADLER32, "0123abcd"),
        "b": Checksum(ChecksumFormat.ADLER32, "00000001"),
    }
    assert {t.name: t.checksum for t in shard} == {**known, "c": None}
    assert read_checksums(place.store, manifest) == known


def test_checksums_are_read_from_headers_alone(place):
    place.put_all(delta_files(7, 6, CHANGES, file_count=2, checksum_format="adler32"))
    assert read_checksums(place.store, read_manifest(place.store, 7)) == {
        name: Checksum(ChecksumFormat.ADLER32, CHECKSUMS["adler32"](new)) for name, (_, new) in CHANGES.items()
    }


def test_missing_file_is_rejected(place):
    place.put_all(delta_files(7, 6, CHANGES))
    place.raw.delete(KEY)
    with pytest.raises(PublicationError, match=FILE) as raised:
        fetch_shard(place.store, read_manifest(place.store, 7), FILE)
    assert raised.value.rejection is Rejection.FILE_MISSING


def test_payload_digest_is_checked_before_the_header(place):
    content = good_file()
    digest = xxhash.xxh3_64_hexdigest(content)
    flipped = bytearray(content)
    flipped[3] ^= 0xFF  # would be a header of absurd length
    error = rejection_of(place, bytes(flipped), digest=digest)
    assert error.rejection is Rejection.PAYLOAD_DIGEST_MISMATCH
    assert digest in str(error)
    assert xxhash.xxh3_64_hexdigest(bytes(flipped)) in str(error)


@pytest.mark.parametrize("kept_bytes", [0, 5, 8, 60, -1])
def test_truncated_file_is_rejected(place, kept_bytes):
    error = rejection_of(place, good_file()[:kept_bytes])
    assert error.rejection in (Rejection.FILE_TRUNCATED, Rejection.BAD_HEADER)
    assert error.rejection is Rejection.FILE_TRUNCATED or kept_bytes == 0


@pytest.mark.parametrize(
    ("content", "rejection"),
    [
        (struct.pack("<Q", 1 << 62) + b"{}", Rejection.BAD_HEADER),
        (safetensors_file({}, b"")[:8] + b"[]", Rejection.BAD_HEADER),
        (struct.pack("<Q", 4) + b"nope", Rejection.BAD_HEADER),
        (struct.pack("<Q", 14) + b'{"a":1,"a": 2}', Rejection.BAD_HEADER),
        (edited(**{"a.weight": {"dtype": "U8", "shape": [3]}}), Rejection.BAD_HEADER),
        (
            edited(**{"a.weight": {"dtype": "U9", "shape": [3], "data_offsets": [0, 3]}}),
            Rejection.BAD_HEADER,
        ),
        (
            edited(**{"a.weight": {"dtype": "U8", "shape": [-3], "data_offsets": [0, 3]}}),
            Rejection.BAD_HEADER,
        ),
        (edited(__metadata__={"a.weight": 5}), Rejection.BAD_HEADER),
        (
            edited(**{"a.weight": {"dtype": "U8", "shape": [1] * 65, "data_offsets": [0, 1]}}),
            Rejection.BAD_HEADER,
        ),
        (
            edited(**{"a.weight": {"dtype": "U8", "shape": [1 << 62] * 64, "data_offsets": [0, 1]}}),
            Rejection.BAD_OFFSETS,
        ),
        (
            edited(**{"a.weight": {"dtype": "U8", "shape": [3], "data_offsets": [3, 0]}}),
            Rejection.BAD_OFFSETS,
        ),
        (
            edited(**{"a.weight": {"dtype": "U8", "shape": [9], "data_offsets": [0, 3]}}),
            Rejection.BAD_OFFSETS,
        ),
        (
            edited(**{"b.weight": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}),
            Rejection.BAD_OFFSETS,
        ),
        (
            edited(**{"b.weight": {"dtype": "U8", "shape": [1 << 40], "data_offsets": [17, 17 + (1 << 40)]}}),
            Rejection.FILE_TRUNCATED,
        ),
        (good_file() + b"\0", Rejection.BAD_OFFSETS),
        (edited(__metadata__=None), Rejection.CHECKSUM_MISSING),
        (edited(__metadata__={"a.weight": "0" * 32}), Rejection.CHECKSUM_MISSING),
        (edited(__metadata__={"a.weight": "0" * 32, "b.weight": "0" * 8}), Rejection.BAD_CHECKSUM_TEXT),
        (edited(__metadata__={"a.weight": "0" * 32, "b.weight": "G" * 32}), Rejection.BAD_CHECKSUM_TEXT),
        (payload_file({"a.weight": b"x"}, {"a.weight": "0" * 32}), Rejection.TENSOR_MISSING),
        (
            payload_file(
                dict.fromkeys(("a.weight", "b.weight", "c"), b"x"),
                dict.fromkeys(("a.weight", "b.weight", "c"), "0" * 32),
            ),
            Rejection.UNEXPECTED_TENSOR,
        ),
    ],
)
def test_broken_file_is_rejected_by_name(local_place, content, rejection):
    assert rejection_of(local_place, content).rejection is rejection


@pytest.mark.parametrize(("dtype", "shape"), [("I8", [4]), ("U8", [2, 2]), ("BF16", [2])])
def test_delta_tensor_that_is_not_one_row_of_bytes_is_rejected(local_place, dtype, shape):
    content = safetensors_file(
        {
            "__metadata__": dict.fromkeys(CHANGES, "0" * 32),
            "a.weight": {"dtype": dtype, "shape": shape, "data_offsets": [0, 4]},
            "b.weight": {"dtype": "U8", "shape": [1], "data_offsets": [4, 5]},
        },
        bytes(5),
    )
    error = rejection_of(local_place, content)
    assert error.rejection is Rejection.NOT_A_PAYLOAD
    assert error.tensor == "a.weight"


def test_names_of_tensors_cannot_forge_log_lines(local_place):
    name = "a\nERROR: all is lost\ud800" + "x" * 1000
    content = payload_file({**dict.fromkeys(CHANGES, b"x"), name: b"x"}, dict.fromkeys(CHANGES, "0" * 32))
    told = str(rejection_of(local_place, content))
    assert "a\\nERROR" in told
    assert told.isprintable()
    assert len(told) < 600


@given(st.data())
def test_no_mutation_of_a_file_gets_past_with_views_outside_it(data):
    content = bytearray(good_file())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        length = header_length(bytes(content[:8]), len(content))
        header = parse_header(bytes(content[LENGTH_PREFIX_BYTES : LENGTH_PREFIX_BYTES + length]), len(content))
    except PublicationError:
        return
    ends = [8 + length, *(entry.end for entry in header.tensors)]
    assert [entry.start for entry in header.tensors] == ends[:-1]
    assert ends[-1] == len(content)
    for entry in header.tensors:
        assert entry.size_bytes >= 0


@given(
    st.dictionaries(st.text(max_size=20).filter(lambda name: name != "__metadata__"), st.binary(max_size=50)),
)
def test_header_agrees_with_the_reference_library(tensors):
    content = payload_file(tensors, {})
    length = header_length(content[:8], len(content))
    header = parse_header(content[8 : 8 + length], len(content))
    ours = {entry.name: content[entry.start : entry.end] for entry in header.tensors}
    theirs = {name: np.asarray(array).tobytes() for name, array in reference_load(content).items()}
    assert ours == theirs == tensors
