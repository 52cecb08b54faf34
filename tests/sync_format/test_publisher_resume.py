"""Starting, resuming and refusing: a publisher never writes a delta against a parent that it cannot vouch for."""

import json

import numpy as np
import pytest
from format_writer import anchor_files, delta_files, safetensors_file
from safetensors.numpy import save_file

from sync.errors import PublicationError, Rejection
from sync.format import fetch_anchor_shard, read_manifest, resolve_chain
from sync.publisher import Publisher
from sync.types import ChecksumFormat


def zeros() -> dict[str, np.ndarray]:
    return {"a": np.zeros(8, np.float32), "b": np.zeros(4, np.float32)}


def checkpoint(directory, **tensors):
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text('{"model_type": "llama"}')
    return directory


def test_delta_without_a_parent_is_refused(local_place):
    with pytest.raises(RuntimeError, match="publish an anchor first, or resume"):
        Publisher(local_place.store).publish_delta(zeros())


def test_first_delta_against_the_checkpoint_that_engines_started_with(local_place):
    publisher = Publisher(local_place.store)
    assert publisher.resume(zeros()) == 0
    publisher.publish_delta({**zeros(), "a": np.ones(8, np.float32)})
    assert [delta.version for delta in resolve_chain(local_place.store, 0, 1).deltas] == [1]


def test_resume_goes_on_after_the_latest_version(place):
    first = Publisher(place.store)
    first.publish_anchor(zeros())
    latest = {**zeros(), "a": np.ones(8, np.float32)}
    first.publish_delta(latest)
    second = Publisher(place.store)
    assert second.resume(latest) == 1
    published = second.publish_delta(zeros())
    assert (published.version, published.base_version, published.changed_elements) == (2, 1, 8)


@pytest.mark.parametrize("checksum_format", list(ChecksumFormat))
@pytest.mark.parametrize("wrong", ["a", "b"])
def test_resume_with_another_parent_is_refused_by_name(place, checksum_format, wrong):
    """`a` was last published by the delta, `b` by the anchor."""
    first = Publisher(place.store, checksum_format=checksum_format)
    first.publish_anchor(zeros())
    latest = {**zeros(), "a": np.ones(8, np.float32)}
    first.publish_delta(latest)
    second = Publisher(place.store)
    other = {**latest, wrong: np.full_like(latest[wrong], 5)}
    with pytest.raises(PublicationError, match=f"version 1, tensor {wrong}: 1 of 2 tensors") as raised:
        second.resume(other)
    assert raised.value.rejection is Rejection.WRONG_PARENT
    with pytest.raises(RuntimeError):
        second.publish_delta(latest)


def test_resume_without_a_published_tensor_is_refused(local_place):
    Publisher(local_place.store).publish_anchor(zeros())
    with pytest.raises(PublicationError, match="lacks 1 of the version's 2 tensors") as raised:
        Publisher(local_place.store).resume({"a": np.zeros(8, np.float32)})
    assert raised.value.tensor == "b"


def test_resume_says_how_much_it_could_not_check(local_place, caplog):
    local_place.put_all(anchor_files(0, {"a": bytes(8), "b": bytes(8)}))
    local_place.put_all(delta_files(1, 0, {"b": (bytes(8), bytes([1]) * 8)}, checksum_format="blake3"))
    parent = {"a": np.zeros(4, np.uint16), "b": np.full(4, 0x0101, np.uint16)}
    assert Publisher(local_place.store).resume(parent) == 1
    assert "1 of 2 tensors of the parent are taken on trust" in caplog.text


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"a": np.zeros(8, np.float32)}, "b is missing"),
        ({**zeros(), "c": np.zeros(1)}, "c is not in the parent"),
        ({**zeros(), "a": np.zeros((2, 4), np.float32)}, r"a is F32 \[8\] in the parent and F32 \[2, 4\] now"),
        ({**zeros(), "a": np.zeros(8, np.float16)}, r"F16 \[8\] now"),
    ],
)
def test_other_tensors_than_the_parents_are_refused_and_nothing_is_written(local_place, changed, told):
    publisher = Publisher(local_place.store)
    publisher.publish_anchor(zeros())
    with pytest.raises(ValueError, match=told):
        publisher.publish_delta(changed)
    assert local_place.store.files(1) == {}
    assert publisher.publish_delta(zeros()).version == 1


def test_bits_given_as_integers_keep_the_parents_dtype(local_place, tmp_path):
    import torch

    publisher = Publisher(local_place.store)
    publisher.publish_anchor({"a": torch.zeros(4, dtype=torch.bfloat16)})
    publisher.publish_delta({"a": np.full(4, 0x3F80, np.uint16)})
    assert read_manifest(local_place.store, 1).dtypes == {"a": "BF16"}


def test_version_that_exists_is_never_overwritten(place):
    publisher = Publisher(place.store)
    publisher.publish_anchor(zeros(), version=3)
    index = place.raw.get("weight_v000003/model.safetensors.index.json")
    for version in (2, 3):
        with pytest.raises(PublicationError, match="version 3 already") as raised:
            publisher.publish_anchor(zeros(), version=version)
        assert raised.value.rejection is Rejection.ALREADY_PUBLISHED
    assert place.raw.get("weight_v000003/model.safetensors.index.json") == index
    assert publisher.publish_anchor(zeros()).version == 4


def test_publisher_that_was_overtaken_is_refused(local_place):
    slow, fast = Publisher(local_place.store), Publisher(local_place.store)
    slow.publish_anchor(zeros())
    fast.resume(zeros())
    fast.publish_delta(zeros())
    with pytest.raises(PublicationError, match="at version 1 already") as raised:
        slow.publish_delta(zeros())
    assert raised.value.rejection is Rejection.ALREADY_PUBLISHED


def test_anchor_from_a_directory_is_a_whole_checkpoint(place, tmp_path):
    source = checkpoint(tmp_path / "source", w=np.arange(6, dtype=np.float16).reshape(2, 3), v=np.ones(3))
    (source / "tokenizer").mkdir()
    (source / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    (source / ".cache").mkdir()
    (source / ".cache" / "junk").write_text("x")
    (source / "pytorch_model.bin").write_bytes(b"another copy of the weights")
    published = Publisher(place.store).publish_anchor(source)
    assert published.base_version is None
    assert published.total_elements == 9
    assert set(place.store.files(0)) == {
        "config.json",
        "tokenizer/vocab.txt",
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
    }
    assert place.raw.get("weight_v000000/config.json") == b'{"model_type": "llama"}'
    manifest = read_manifest(place.store, 0)
    shard = fetch_anchor_shard(place.store, manifest, manifest.files[0])
    found = {tensor.name: (tensor.dtype, tensor.shape, bytes(tensor.data)) for tensor in shard}
    assert found == {
        "w": ("F16", (2, 3), np.arange(6, dtype=np.float16).tobytes()),
        "v": ("F64", (3,), np.ones(3).tobytes()),
    }
    assert all(tensor.checksum is not None for tensor in shard)


@pytest.mark.parametrize("dtype", ["F4", "F8_E4M3", "F8_E5M2", "F8_E8M0", "BF16", "BOOL", "U64", "C64"])
def test_directory_of_any_dtype_is_published_bit_for_bit(local_place, tmp_path, dtype):
    """Through the directory, since numpy itself does not know most of these."""
    bits = {"F4": 4, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "BF16": 16, "BOOL": 8, "U64": 64, "C64": 64}[dtype]
    body = bytes([0, 1] * 32)
    shape = [2, len(body) * 8 // bits // 2]
    for step in (0, 1):
        data = bytes([step]) + body[1:]
        header = {"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(body)]}}
        (tmp_path / f"step-{step}").mkdir()
        (tmp_path / f"step-{step}" / "model.safetensors").write_bytes(safetensors_file(header, data))
    publisher = Publisher(local_place.store)
    publisher.publish_anchor(tmp_path / "step-0")
    manifest = read_manifest(local_place.store, 0)
    (tensor,) = fetch_anchor_shard(local_place.store, manifest, manifest.files[0])
    assert (tensor.name, tensor.dtype, tensor.shape, bytes(tensor.data)) == ("w", dtype, tuple(shape), body)
    published = publisher.publish_delta(tmp_path / "step-1")
    assert published.changed_elements == 1
    assert published.total_elements == len(body) // max(1, bits // 8)
    assert read_manifest(local_place.store, 1).shapes == {"w": tuple(shape)}


def test_anchor_splits_by_size_and_transformers_index_keys_are_there(local_place):
    weights = {f"t{number}": np.full(1000, number, np.float32) for number in range(5)}
    Publisher(local_place.store, shard_bytes=8000).publish_anchor(weights)
    index = json.loads(local_place.raw.get("weight_v000000/model.safetensors.index.json"))
    assert index["metadata"]["total_size"] == 20_000
    assert [index["weight_map"][name] for name in weights] == [
        f"model-0000{file}-of-00003.safetensors" for file in (1, 1, 2, 2, 3)
    ]


def test_parent_from_a_directory_survives_its_rewriting(local_place, tmp_path):
    """A trainer that saves every step into one directory."""
    directory = checkpoint(tmp_path / "step", a=np.zeros(100, np.float32))
    publisher = Publisher(local_place.store)
    publisher.publish_anchor(directory)
    with open(directory / "model.safetensors", "r+b") as stream:
        stream.seek(-400, 2)
        stream.write(np.ones(100, np.float32).tobytes())
    assert publisher.publish_delta(directory).changed_elements == 100
    assert publisher.publish_delta(directory).changed_elements == 0


@pytest.mark.parametrize(
    ("options", "told"), [({"level": 0}, "level"), ({"shard_bytes": 0}, "shard_bytes"), ({"threads": 0}, "threads")]
)
def test_bad_option_is_refused(tmp_path, options, told):
    with pytest.raises(ValueError, match=told):
        Publisher(str(tmp_path), **options)


@pytest.mark.parametrize(
    ("tensors", "error", "told"),
    [
        ({}, ValueError, "at least one tensor"),
        ({"a": [1, 2]}, TypeError, "numpy array or a torch tensor"),
        ({"a": np.zeros(2, np.complex128)}, TypeError, "complex128"),
        ("/no/such/directory", FileNotFoundError, "not a directory"),
    ],
)
def test_what_is_no_policy_is_refused(local_place, tensors, error, told):
    with pytest.raises(error, match=told):
        Publisher(local_place.store).publish_anchor(tensors)
