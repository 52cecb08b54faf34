"""What every store must do; each test runs on a local directory and on a real S3 server."""

import threading

import numpy as np
import pytest

from sync.errors import PublicationError, Rejection, StoreError
from sync.stores import open_store

INDEX = "model.safetensors.index.json"


def test_empty_store_has_no_versions(place):
    assert place.store.latest() is None
    assert place.store.versions() == []
    assert place.store.files(3) == {}
    assert place.store.size(3, "x") is None
    assert place.store.read_small(3, "x", limit_bytes=10) is None


def test_latest_without_pointer_is_the_highest_version_whose_index_exists(place):
    place.put_all({f"weight_v000002/{INDEX}": b"{}", f"weight_v000010/{INDEX}": b"{}"})
    place.put_all({"weight_v000011/model-00000-of-00001.safetensors": b"a publisher died here"})
    place.put_all({f"weight_v12/{INDEX}": b"{}", f"weight_v000013.bak/{INDEX}": b"{}"})
    assert place.store.versions() == [2, 10]
    assert place.store.latest() == 10


def test_pointer_wins_over_the_highest_version(place):
    place.put_all({f"weight_v000002/{INDEX}": b"{}", f"weight_v000010/{INDEX}": b"{}"})
    place.raw.put("latest", b"weight_v000002\n")
    assert place.store.latest() == 2


@pytest.mark.parametrize("text", [b"", b"7", b"weight_v7", b"weight_v000007/", b"weight_v-00001", b"\xff" * 300])
def test_unparsable_pointer_raises_and_names_the_text(place, text):
    place.put_all({f"weight_v000007/{INDEX}": b"{}"})
    place.raw.put("latest", text)
    with pytest.raises(PublicationError, match="weight_v000007") as raised:
        place.store.latest()
    assert raised.value.rejection is Rejection.BAD_POINTER
    with pytest.raises(PublicationError):
        place.store.publish(9)
    assert place.raw.get("latest") == text


def test_pointer_moves_forward_and_never_back(place):
    assert place.store.publish(7) == 7
    assert place.raw.get("latest") == b"weight_v000007"
    assert place.store.publish(5) == 7
    assert place.store.publish(7) == 7
    assert place.raw.get("latest") == b"weight_v000007"
    assert place.store.publish(1_000_000) == 1_000_000
    assert place.store.latest() == 1_000_000


def test_racing_publishers_leave_the_highest_version(place):
    others = [open_store(place.store.url) for _ in range(4)]
    start = threading.Barrier(len(others))
    seen: list[list[int]] = [[] for _ in others]

    def publish(number: int) -> None:
        start.wait()
        for round_number in range(5):
            seen[number].append(others[number].publish(round_number * len(others) + number + 1))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(len(others))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        other.close()
    assert place.store.latest() == 20
    assert all(versions == sorted(versions) and len(versions) == 5 for versions in seen)


def test_write_new_refuses_an_existing_file_and_one_of_many_wins(place):
    start = threading.Barrier(4)
    won: list[bytes] = []

    def write(content: bytes) -> None:
        start.wait()
        if place.store.write_new(1, INDEX, memoryview(content)):
            won.append(content)

    threads = [threading.Thread(target=write, args=(bytes([65 + number]) * 100,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert place.raw.get(f"weight_v000001/{INDEX}") == won[0]
    assert not place.store.write_new(1, INDEX, memoryview(b"later"))


def test_written_files_are_listed_and_read_back_in_parts(place):
    content = np.random.default_rng(0).integers(0, 256, 70_000_001, np.uint8)
    place.store.write(4, "big.safetensors", content.data)
    place.store.write(4, "sub/small.json", memoryview(b"{}"))
    place.store.write(4, "empty", memoryview(b""))
    assert place.store.files(4) == {"big.safetensors": content.nbytes, "sub/small.json": 2, "empty": 0}
    assert place.store.size(4, "big.safetensors") == content.nbytes

    read = np.zeros_like(content)
    place.store.read_into(4, "big.safetensors", read.data)
    assert np.array_equal(read, content)
    part = memoryview(bytearray(20_000_000))
    place.store.read_into(4, "big.safetensors", part, offset=33_000_000)
    assert part == content[33_000_000:53_000_000].data
    place.store.read_into(4, "empty", memoryview(bytearray(0)))
    assert place.store.read_small(4, "empty", limit_bytes=5) == b""


def test_rewriting_replaces_the_whole_file(place):
    place.store.write(1, "a", memoryview(b"a long first content"))
    place.store.write(1, "a", memoryview(b"short"))
    assert place.raw.get("weight_v000001/a") == b"short"


def test_small_read_stops_one_byte_after_the_limit(place):
    place.raw.put("weight_v000001/a", bytes(1000))
    assert place.store.read_small(1, "a", limit_bytes=1000) == bytes(1000)
    assert len(place.store.read_small(1, "a", limit_bytes=99)) == 100


@pytest.mark.parametrize("size_bytes", [100, 40_000_000])
def test_reading_past_the_end_raises(place, size_bytes):
    place.raw.put("weight_v000001/a", bytes(size_bytes))
    with pytest.raises(StoreError, match=r"weight_v000001/a|Range"):
        place.store.read_into(1, "a", memoryview(bytearray(size_bytes + 1)))


def test_reading_a_missing_file_raises(place):
    with pytest.raises(StoreError):
        place.store.read_into(1, "missing", memoryview(bytearray(10)))


def test_more_files_than_one_listing_page_are_all_listed(place):
    for number in range(1005):
        place.raw.put(f"weight_v000001/{number:04d}", b"x")
    assert len(place.store.files(1)) == 1005
