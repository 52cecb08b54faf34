"""The whole path against a real engine in this process: published deltas end as bytes in engine memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from independent_trainer import train_step, write_delta

pytestmark = pytest.mark.engine


def assert_same(held, expected) -> None:
    assert held.keys() == expected.keys()
    for name in expected:
        assert np.array_equal(held[name], expected[name]), name


def test_start_up_proves_every_element_and_records_its_checksum(tiny_engine, run_replica) -> None:
    import zlib

    async def body(replica):
        assert_same(replica.engine.checkpoint_bytes(), replica.weights)
        expected = {name: zlib.adler32(data) for name, data in replica.weights.items()}
        assert replica.proven.ledger.adler32 == expected

    run_replica(tiny_engine, body)


@pytest.mark.parametrize("checksum", ["adler32", "xxh3-128", "blake3"])
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_foreign_delta_ends_in_engine_memory(tiny_engine, run_replica, tmp_path: Path, checksum, encoding) -> None:
    async def body(replica):
        new = train_step(replica.weights, seed=1)
        write_delta(tmp_path / "store", 1, 0, replica.weights, new, checksum=checksum, encoding=encoding, shards=3)
        report = await replica.coordinator.sync(1)
        assert report.version == replica.coordinator.version == 1
        assert_same(replica.engine.checkpoint_bytes(), new)

    run_replica(tiny_engine, body)
