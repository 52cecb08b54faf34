"""What `Publisher` writes, read back by few independent lines: zstandard, the safetensors library, zlib."""

import json
import threading

import numpy as np
import pytest
import safetensors.numpy
import torch
import xxhash
import zstandard
from format_writer import CHECKSUMS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sync.errors import PublicationError, Rejection, StoreError
from sync.format import decode_overwrite, fetch_shard, read_manifest, resolve_chain
from sync.publisher import Publisher
from sync.stores import open_store
from sync.types import ChecksumFormat, DeltaEncoding

INDEX = "model.safetensors.index.json"


def policy(rng: np.random.Generator, **sizes: int) -> dict[str, np.ndarray]:
    return {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}


def apply_independently(raw, version: int, weights: dict[str, bytes]) -> dict[str, bytes]:
    """`weights` with version `version` applied, checksums checked; from the raw files alone."""
    directory = f"weight_v{version:06d}"
    index = json.loads(raw.get(f"{directory}/{INDEX}"))
    assert index["metadata"]["version"] == f"{version:06d}"
    assert index["metadata"]["compression_format"] == "zstd"
    result = dict(weights)
    for file in sorted(set(index["weight_map"].values())):
        content = raw.get(f"{directory}/{file}")
        assert index["metadata"]["payload_digests"][file] == xxhash.xxh3_64_hexdigest(content)
        length = int.from_bytes(content[:8], "little")
        checksums = json.loads(content[8 : 8 + length])["__metadata__"]
        for name, array in safetensors.numpy.load(content).items():
            assert array.dtype == np.uint8
            assert array.ndim == 1
            assert index["weight_map"][name] == file
            checksum = CHECKSUMS[index["metadata"]["checksum_format"]]
            assert index["metadata"]["parent_checksums"][name] == checksum(weights[name])
            plain = zstandard.ZstdDecompressor().stream_reader(array.tobytes(), read_across_frames=True).read()
            parent = np.frombuffer(weights[name], np.uint8).copy()
            if index["metadata"]["delta_encoding"] == "xor":
                parent ^= np.frombuffer(plain, np.uint8)
            else:
                count = int.from_bytes(plain[:4], "little")
                positions = np.frombuffer(plain, "<u4", count, 4)
                parent[positions] = np.frombuffer(plain, np.uint8, count, 4 + 4 * count)
            assert checksum(parent.tobytes()) == checksums[name]
            result[name] = parent.tobytes()
    return result


def as_bytes(tensors) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(tensor).tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("encoding", list(DeltaEncoding))
@pytest.mark.parametrize("checksum_format", list(ChecksumFormat))
def test_deltas_turn_the_anchor_into_each_step(place, encoding, checksum_format):
    rng = np.random.default_rng(0)
    weights = policy(rng, a=5000, b=300, c=1, d=20_000)
    publisher = Publisher(place.store, encoding=encoding, checksum_format=checksum_format, shard_bytes=3000)
    assert publisher.publish_anchor(weights).version == 0
    applied = as_bytes(weights)
    for version in (1, 2, 3):
        for name in ("a", "d"):
            changed = rng.choice(weights[name].size, 50, replace=False)
            weights[name][changed] += 1.0
        published = publisher.publish_delta(weights)
        assert (published.version, published.base_version) == (version, version - 1)
        assert (published.changed_elements, published.total_elements) == (100, 25_301)
        assert published.density == 100 / 25_301
        applied = apply_independently(place.raw, version, applied)
        assert applied == as_bytes(weights)
        manifest = read_manifest(place.store, version)
        assert set(manifest.weight_map) == {"a", "d"}
        assert manifest.dtypes == {"a": "F32", "d": "F32"}
        assert manifest.shapes == {"a": (5000,), "d": (20_000,)}
        assert manifest.density == published.density
        assert place.raw.get("latest").decode() == f"weight_v{version:06d}"
    chain = resolve_chain(place.store, None, 3)
    assert chain.anchor.version == 0
    assert len(chain.deltas) == 3


def test_index_has_the_keys_of_public_trainers(local_place):
    publisher = Publisher(local_place.store)
    publisher.publish_anchor({"a": np.zeros(4, np.float32)}, version=6)
    publisher.publish_delta({"a": np.ones(4, np.float32)})
    index = json.loads(local_place.raw.get(f"weight_v000007/{INDEX}"))
    assert index["weight_map"] == {"a": "model-00000-of-00001.safetensors"}
    expected = {
        "version": "000007",
        "base_version": "000006",
        "delta_encoding": "xor",
        "compression_format": "zstd",
        "checksum_format": "adler32",
        "payload_digest_format": "xxh3-64",
        "dtypes": {"a": "F32"},
        "shapes": {"a": [4]},
    }
    assert index["metadata"].items() >= expected.items()


dtypes = st.sampled_from([np.float32, np.float16, np.uint8, np.int64, np.uint16, np.bool_])


@st.composite
def two_policies(draw):
    """A policy and one with some of its elements changed."""
    first, second = {}, {}
    for name in draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4, unique=True)):
        array = draw(npst.arrays(draw(dtypes), npst.array_shapes(max_dims=3, max_side=8, min_dims=0)))
        flat = array.reshape(-1).view(np.uint8).copy()
        for position in draw(st.lists(st.integers(0, flat.size - 1), max_size=5)):
            flat[position] ^= draw(st.integers(0, 1 if array.dtype == np.bool_ else 255))
        first[name], second[name] = array, flat.view(array.dtype).reshape(array.shape)
    return first, second


@given(two_policies(), st.sampled_from(list(DeltaEncoding)), st.sampled_from(list(ChecksumFormat)), st.integers(1, 400))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_change_of_any_policy_comes_out_bit_for_bit(tmp_path_factory, policies, encoding, checksums, shard):
    first, second = policies
    if any(name in ("__metadata__", "format") for name in first):
        return
    store = open_store(str(tmp_path_factory.mktemp("store")))
    publisher = Publisher(
        store, encoding=encoding, checksum_format=checksums, shard_bytes=shard, threads=1, progress=False
    )
    publisher.publish_anchor(first)
    published = publisher.publish_delta(second)
    before, after = as_bytes(first), as_bytes(second)

    class Raw:
        @staticmethod
        def get(key):
            return store.read_small(int(key[8:14]), key[15:], limit_bytes=1 << 30)

    assert apply_independently(Raw, 1, before) == after
    assert set(read_manifest(store, 1).weight_map) == {name for name in first if before[name] != after[name]}
    assert published.changed_elements == sum(
        np.count_nonzero(
            first[name].reshape(-1).view(np.uint8).reshape(first[name].size, -1)
            != second[name].reshape(-1).view(np.uint8).reshape(first[name].size, -1),
            axis=1,
        )
        .astype(bool)
        .sum()
        for name in first
    )
    store.close()


def torch_bytes(tensors) -> dict[str, bytes]:
    return {
        name: tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in tensors.items()
    }


def test_torch_tensors_of_every_float_type_keep_their_bits_and_dtype(local_place):
    weights = {
        "bf16": torch.randn(33, 7).to(torch.bfloat16),
        "f8": torch.randn(16).to(torch.float8_e4m3fn),
        "half": torch.randn(5).half(),
        "scalar": torch.tensor(3.0),
        "strided": torch.randn(6, 4).t(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }
    publisher = Publisher(local_place.store)
    publisher.publish_anchor(weights)
    before = torch_bytes(weights)
    with torch.no_grad():
        for name in ("bf16", "f8", "half", "scalar", "parameter"):
            weights[name].reshape(-1).view(torch.uint8)[0] ^= 1
        weights["strided"][1, 2] += 1
    publisher.publish_delta(weights)
    manifest = read_manifest(local_place.store, 1)
    assert manifest.dtypes == {
        "bf16": "BF16",
        "f8": "F8_E4M3",
        "half": "F16",
        "scalar": "F32",
        "strided": "F32",
        "parameter": "F32",
    }
    assert manifest.shapes["strided"] == (4, 6)
    assert manifest.shapes["scalar"] == ()
    after = apply_independently(local_place.raw, 1, before)
    assert after == torch_bytes(weights)
    assert all(after[name] != before[name] for name in weights)


def test_large_tensor_has_one_frame_for_each_16_mib(local_place):
    weights = {"big": np.zeros(20_000_000, np.uint16)}
    publisher = Publisher(local_place.store)
    publisher.publish_anchor(weights)
    weights["big"][[0, 9_000_000, 19_999_999]] = 7
    published = publisher.publish_delta(weights)
    assert published.changed_elements == 3
    shard = fetch_shard(local_place.store, read_manifest(local_place.store, 1), "model-00000-of-00001.safetensors")
    assert bytes(shard.tensors[0].payload).count(b"\x28\xb5\x2f\xfd") == 3
    applied = apply_independently(local_place.raw, 1, {"big": bytes(40_000_000)})
    assert applied == as_bytes(weights)


def test_policy_that_did_not_change_is_an_empty_delta(place):
    weights = policy(np.random.default_rng(1), a=10)
    publisher = Publisher(place.store)
    publisher.publish_anchor(weights)
    published = publisher.publish_delta(weights)
    assert (published.changed_elements, published.payload_bytes, published.density) == (0, 0, 0.0)
    assert read_manifest(place.store, 1).weight_map == {}
    assert place.store.latest() == 1


def test_trainer_may_overwrite_its_tensors_after_each_call(local_place):
    weights = policy(np.random.default_rng(2), a=100)
    publisher = Publisher(local_place.store)
    publisher.publish_anchor(weights)
    before = as_bytes(weights)
    weights["a"][:] = 1.0
    publisher.publish_delta(weights)
    middle = apply_independently(local_place.raw, 1, before)
    assert middle == {"a": np.ones(100, np.float32).tobytes()}
    weights["a"][:] = 2.0
    publisher.publish_delta(weights)
    assert apply_independently(local_place.raw, 2, middle) == as_bytes(weights)


def test_overwrite_payload_positions_are_those_of_the_changed_bytes(local_place):
    publisher = Publisher(local_place.store, encoding=DeltaEncoding.OVERWRITE)
    publisher.publish_anchor({"a": np.zeros(6, np.uint16)})
    publisher.publish_delta({"a": np.array([0, 0x0100, 0, 0x0302, 0, 0], np.uint16)})
    shard = fetch_shard(local_place.store, read_manifest(local_place.store, 1), "model-00000-of-00001.safetensors")
    decoded = decode_overwrite(shard.tensors[0].payload, 12)
    assert decoded.positions.tolist() == [3, 6, 7]
    assert decoded.values.tolist() == [1, 2, 3]


def test_two_publishers_of_the_same_version_leave_one_whole_version(place):
    weights = policy(np.random.default_rng(3), a=1000)
    Publisher(place.store).publish_anchor(weights)
    start = threading.Barrier(2)
    outcomes: list[object] = []

    def publish(value: float) -> None:
        store = open_store(place.store.url)
        publisher = Publisher(store, threads=1, progress=False)
        publisher.resume(weights)
        start.wait()
        try:
            outcomes.append(publisher.publish_delta({"a": np.full(1000, value, np.float32)}))
        except PublicationError as error:
            outcomes.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=publish, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [outcome for outcome in outcomes if isinstance(outcome, PublicationError)]
    assert len(outcomes) == 2
    assert len(refused) == 1
    assert refused[0].rejection is Rejection.ALREADY_PUBLISHED
    assert place.store.latest() == 1


class Failing:
    """A store whose writes of chosen kinds fail, as a dying publisher's do."""

    def __init__(self, store, fail: str) -> None:
        self._store, self.fail = store, fail

    def __getattr__(self, name: str):
        if name == self.fail:
            raise StoreError("the network went away")
        return getattr(self._store, name)


@pytest.mark.parametrize("fail", ["write", "write_new"])
def test_died_publisher_is_invisible_and_its_version_can_be_written_again(place, fail):
    weights = policy(np.random.default_rng(4), a=1000, b=1000)
    store = Failing(place.store, "")
    publisher = Publisher(store)
    publisher.publish_anchor(weights)
    before = as_bytes(weights)
    changed = {name: tensor + 1 for name, tensor in weights.items()}
    store.fail = fail
    with pytest.raises(StoreError, match="went away"):
        publisher.publish_delta(changed)
    place.raw.put("weight_v000001/model-00000-of-00001.safetensors", b"half a file")
    assert place.store.latest() == 0
    assert place.store.versions() == [0]
    store.fail = ""
    assert publisher.publish_delta(changed).version == 1
    assert apply_independently(place.raw, 1, before) == as_bytes(changed)


def test_version_whose_pointer_could_not_move_is_complete_and_the_next_moves_it(local_place):
    store = Failing(local_place.store, "")
    publisher = Publisher(store)
    publisher.publish_anchor({"a": np.zeros(4, np.float32)})
    store.fail = "publish"
    with pytest.raises(StoreError, match="version 1 is complete"):
        publisher.publish_delta({"a": np.ones(4, np.float32)})
    store.fail = ""
    assert local_place.store.latest() == 0
    published = publisher.publish_delta({"a": np.full(4, 2, np.float32)})
    assert (published.version, published.base_version) == (2, 1)
    assert [delta.version for delta in resolve_chain(local_place.store, 0, 2).deltas] == [1, 2]


def test_publisher_that_died_before_moving_the_pointer_is_resumed_from_its_last_version(place):
    store = Failing(place.store, "")
    died = Publisher(store)
    died.publish_anchor({"a": np.zeros(4, np.float32)})
    store.fail = "publish"
    with pytest.raises(StoreError):
        died.publish_delta({"a": np.ones(4, np.float32)})
    assert place.store.latest() == 0

    resumed = Publisher(place.store)
    with pytest.raises(PublicationError, match="version 1, tensor a"):
        resumed.resume({"a": np.zeros(4, np.float32)})
    assert resumed.resume({"a": np.ones(4, np.float32)}) == 1
    assert resumed.publish_delta({"a": np.zeros(4, np.float32)}).version == 2
    assert place.store.latest() == 2

    # A trainer that went back to older weights starts a new chain instead.
    assert Publisher(place.store).publish_anchor({"a": np.zeros(4, np.float32)}).version == 3
