"""Random damage to a whole version: read right, or rejected as a publication error. Nothing else, ever."""

import numpy as np
import pytest
from format_writer import delta_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sync.errors import PublicationError
from sync.named_tensors import NamedTensor
from sync.publication_check import check_version
from sync.stores import open_store

rng = np.random.default_rng(7)
PARENT = {"a.weight": rng.integers(0, 256, 600, np.uint8).tobytes(), "b.weight": bytes(200)}
NEW = {
    "a.weight": bytes(byte ^ (position % 50 == 0) for position, byte in enumerate(PARENT["a.weight"])),
    "b.weight": bytes(range(200)),
}
CHANGES = {name: (PARENT[name], NEW[name]) for name in PARENT}
TENSORS = {name: NamedTensor("U8", (len(data),), np.frombuffer(data, np.uint8)) for name, data in PARENT.items()}


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_version_is_read_right_or_rejected(tmp_path_factory, encoding, data):
    root = tmp_path_factory.mktemp("damaged")
    files = delta_files(1, 0, CHANGES, encoding=encoding, file_count=2)
    victim = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[victim])
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "swap"]))
    position = data.draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        content[position] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        # Short enough to leave one of the keys that tell a delta's index from an anchor's; or the whole rest.
        end = data.draw(st.one_of(st.integers(position + 1, position + 40), st.just(len(content))))
        del content[position:end]
    elif kind == "insert":
        content[position:position] = data.draw(st.binary(min_size=1, max_size=20))
    else:
        other = data.draw(st.integers(0, len(content) - 1))
        content[position], content[other] = content[other], content[position]
    for key, text in {**files, victim: bytes(content)}.items():
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(text)
    store = open_store(str(root))
    try:
        check = check_version(store, 1, parent=TENSORS, threads=1, progress=False)
    except PublicationError as error:
        assert str(error).isprintable()  # noqa: PT017
    else:
        # Good means that every tensor's new bytes had the checksum that was published.
        assert check.checksums_verified == check.tensors
    finally:
        store.close()
