"""Indexes and chains: what a public trainer writes is read; everything else is rejected by name."""

import json

import pytest
from format_writer import anchor_files, delta_files

from sync.errors import PublicationError, Rejection
from sync.format import parse_manifest, read_manifest, resolve_chain
from sync.types import AnchorManifest, ChecksumFormat, DeltaEncoding, DeltaManifest

INDEX = "model.safetensors.index.json"
CHANGES = {"a.weight": (bytes(64), bytes([1]) * 64), "b.weight": (bytes(32), bytes([2]) * 32)}


def index_of(**changed: object) -> dict:
    """A good index of version 7, with some metadata replaced (None: removed)."""
    index = json.loads(delta_files(7, 6, CHANGES)[f"weight_v000007/{INDEX}"])
    index["metadata"] |= changed
    index["metadata"] = {key: value for key, value in index["metadata"].items() if value is not None}
    return index


def rejection_of(text: bytes | dict, version: int = 7) -> PublicationError:
    with pytest.raises(PublicationError) as raised:
        parse_manifest(text if isinstance(text, bytes) else json.dumps(text).encode(), version)
    assert raised.value.version == version
    assert raised.value.file == INDEX
    assert str(raised.value).startswith(f"version {version}, file {INDEX}")
    assert "\n" not in str(raised.value)
    return raised.value


def test_index_of_a_public_trainer_is_read(place):
    place.put_all(delta_files(7, 6, CHANGES, checksum_format="blake3", encoding="overwrite", file_count=2))
    manifest = read_manifest(place.store, 7)
    assert manifest == DeltaManifest(
        7,
        {"a.weight": "model-00000-of-00002.safetensors", "b.weight": "model-00001-of-00002.safetensors"},
        base_version=6,
        encoding=DeltaEncoding.OVERWRITE,
        checksum_format=ChecksumFormat.BLAKE3,
    )
    assert manifest.files == ("model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors")
    assert manifest.tensors_of["model-00001-of-00002.safetensors"] == ("b.weight",)
    assert manifest.density is None


def test_empty_delta_is_valid(place):
    place.put_all(delta_files(7, 6, {}))
    assert read_manifest(place.store, 7).files == ()


def test_anchor_of_hugging_face_is_read(place):
    place.put_all(anchor_files(3, {"a": bytes(8)}))
    manifest = read_manifest(place.store, 3)
    assert isinstance(manifest, AnchorManifest)
    assert manifest.weight_map == {"a": "model-00001-of-00001.safetensors"}


def test_versions_are_decimal_with_or_without_leading_zeros():
    for text in ("7", "000007", "0000000007"):
        assert parse_manifest(json.dumps(index_of(version=text)).encode(), 7).version == 7


def test_missing_index_is_named(place):
    place.put_all({"weight_v000007/model-00000-of-00001.safetensors": b"the publisher died"})
    with pytest.raises(PublicationError, match="no index") as raised:
        read_manifest(place.store, 7)
    assert raised.value.rejection is Rejection.INDEX_MISSING


def test_index_above_the_limit_is_rejected_without_parsing(local_place):
    path = local_place.raw.root / "weight_v000007" / INDEX
    path.parent.mkdir(parents=True)
    with open(path, "wb") as stream:
        stream.truncate((256 << 20) + 1)  # sparse: takes no disk space
    with pytest.raises(PublicationError, match="268435456") as raised:
        read_manifest(local_place.store, 7)
    assert raised.value.rejection is Rejection.INDEX_TOO_LARGE


@pytest.mark.parametrize(
    ("changed", "rejection", "told"),
    [
        ({"delta_encoding": "xor2"}, Rejection.UNKNOWN_DELTA_ENCODING, "'xor', 'overwrite'"),
        ({"delta_encoding": ["xor"]}, Rejection.UNKNOWN_DELTA_ENCODING, "delta_encoding"),
        ({"compression_format": "lz4"}, Rejection.UNKNOWN_COMPRESSION_FORMAT, "'zstd'"),
        ({"compression_format": None}, Rejection.UNKNOWN_COMPRESSION_FORMAT, "'zstd'"),
        ({"checksum_format": "crc32"}, Rejection.UNKNOWN_CHECKSUM_FORMAT, "'adler32', 'xxh3-128', 'blake3'"),
        ({"checksum_format": None}, Rejection.UNKNOWN_CHECKSUM_FORMAT, "checksum_format"),
        ({"payload_digest_format": "md5"}, Rejection.UNKNOWN_DIGEST_FORMAT, "'xxh3-64'"),
        ({"version": "000008"}, Rejection.VERSION_MISMATCH, "says that it is version 8"),
        ({"base_version": "000007"}, Rejection.VERSION_MISMATCH, "older"),
        ({"base_version": None}, Rejection.BAD_INDEX, "base_version"),
        ({"base_version": 6}, Rejection.BAD_INDEX, "decimal string"),
        ({"base_version": "-1"}, Rejection.BAD_INDEX, "'-1'"),
        ({"base_version": "٦"}, Rejection.BAD_INDEX, "decimal string"),
        ({"version": None}, Rejection.BAD_INDEX, "version"),
        ({"delta_encoding": None}, Rejection.BAD_INDEX, "neither a delta nor an anchor"),
        ({"dtypes": {"a.weight": "BF17"}}, Rejection.BAD_INDEX, "BF17"),
        ({"dtypes": {"a.weight": []}}, Rejection.BAD_INDEX, "dtype"),
        ({"shapes": {"a.weight": [-1]}}, Rejection.BAD_INDEX, "shape"),
        ({"parent_checksums": {"a.weight": "12345678"}}, Rejection.BAD_INDEX, "32 lower-case hex digits"),
        ({"changed_elements": -1}, Rejection.BAD_INDEX, "changed_elements"),
    ],
)
def test_bad_metadata_is_rejected_by_name(changed, rejection, told):
    error = rejection_of(index_of(**changed))
    assert error.rejection is rejection
    assert told in str(error)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"metadata": NaN, "weight_map": {}}',
        b'{"metadata": [], "weight_map": {}}',
        b'{"metadata": {}, "weight_map": {}}',
        b'{"metadata": {}, "weight_map": {"a": 1}}',
        b'{"metadata": {}}',
        b'{"netadata": {}, "weight_map": {"a": "x"}}',
        b'{"metadata": {}, "weight_map": {"a": "x", "a": "y"}}',
    ],
)
def test_text_that_is_no_index_is_rejected(text):
    assert rejection_of(text).rejection is Rejection.BAD_INDEX


@pytest.mark.parametrize(
    "file",
    [
        "../weight_v000006/x",
        "/etc/passwd",
        "a/../../x",
        "",
        ".",
        "a//b",
        "a\\..\\b",
        "a\nb",
        "c:x",
        "\ud800",
        "x" * 300,
    ],
)
def test_path_that_leaves_the_directory_is_rejected_with_its_tensor(file):
    index = index_of()
    index["weight_map"]["a.weight"] = file
    error = rejection_of(index)
    assert error.rejection is Rejection.PATH_LEAVES_DIRECTORY
    assert error.tensor == "a.weight"


def test_digests_must_cover_every_file():
    digests = {"payload_digest_format": "xxh3-64", "payload_digests": {"other": "0" * 16}}
    assert "lacks 1 of 1 files" in str(rejection_of(index_of(**digests)))
    digests["payload_digests"] = {"model-00000-of-00001.safetensors": "xyz"}
    assert "16 lower-case hex digits" in str(rejection_of(index_of(**digests)))


def put_chain(place, *links: tuple[int, int | None]) -> None:
    """(version, base version) pairs; no base: an anchor."""
    for version, base in links:
        place.put_all(anchor_files(version, {"a": bytes(8)}) if base is None else delta_files(version, base, CHANGES))


def test_chain_follows_base_versions_from_serving_to_target(place):
    put_chain(place, (5, None), (6, 5), (7, 6), (9, 7))
    chain = resolve_chain(place.store, 6, 9)
    assert chain.anchor is None
    assert [delta.version for delta in chain.deltas] == [7, 9]
    assert chain.target == 9
    assert resolve_chain(place.store, 9, 9).is_empty


def test_chain_from_the_weights_that_the_engine_was_started_with(place):
    put_chain(place, (1, 0), (2, 1))
    assert [delta.version for delta in resolve_chain(place.store, 0, 2).deltas] == [1, 2]


def test_chain_starts_at_an_anchor_that_lies_between(place):
    put_chain(place, (6, 5), (7, None), (8, 7), (9, 8))
    chain = resolve_chain(place.store, 6, 9)
    assert chain.anchor.version == 7
    assert [delta.version for delta in chain.deltas] == [8, 9]
    assert resolve_chain(place.store, 6, 7).deltas == ()


def test_deltas_from_the_served_anchor_need_no_anchor(place):
    put_chain(place, (7, None), (8, 7))
    assert resolve_chain(place.store, 7, 8).anchor is None


def test_chain_for_an_engine_that_serves_nothing_starts_at_the_nearest_anchor(place):
    put_chain(place, (1, None), (4, None), (5, 4))
    assert resolve_chain(place.store, None, 5).anchor.version == 4


def test_chain_of_another_branch_starts_at_its_anchor(place):
    put_chain(place, (3, None), (4, 3), (5, 4), (6, 4))
    chain = resolve_chain(place.store, 5, 6)
    assert chain.anchor.version == 3
    assert [delta.version for delta in chain.deltas] == [4, 6]


@pytest.mark.parametrize("serving", [3, None, 6])
def test_gap_names_the_missing_version(place, serving):
    put_chain(place, (7, 5), (8, 7), (9, 8))
    with pytest.raises(PublicationError, match=r"no chain leads to version 9.*7 is a delta against 5") as raised:
        resolve_chain(place.store, serving, 9)
    assert raised.value.rejection is Rejection.CHAIN_GAP
    assert raised.value.version == 5


def test_target_that_is_not_published_is_named(place):
    put_chain(place, (7, 6))
    with pytest.raises(PublicationError, match="version 8") as raised:
        resolve_chain(place.store, 7, 8)
    assert raised.value.rejection is Rejection.INDEX_MISSING


def test_errors_survive_the_way_between_processes():
    import pickle

    error = PublicationError(Rejection.BAD_FRAME, "cut", version=3, file="f", tensor="t")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rejection, copy.version, copy.file, copy.tensor) == (
        "version 3, file f, tensor t: cut",
        Rejection.BAD_FRAME,
        3,
        "f",
        "t",
    )
