"""Chains: several deltas committed once, mixed encodings, anchors applied in place, empty deltas, the follower."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from independent_trainer import Weights, train_step, write_anchor, write_delta

from sync.errors import PublicationError, Rejection
from sync.follower import Follower
from sync.ledger import Ledger
from sync.stores import open_store

pytestmark = pytest.mark.engine


def assert_held(replica: Any, expected: Weights) -> None:
    held = replica.engine.checkpoint_bytes()
    for name, data in expected.items():
        assert np.array_equal(held[name], data), name


def write_chain(store: Path, start: Weights, encodings: list[str], density: float = 0.01) -> Weights:
    weights = start
    for version, encoding in enumerate(encodings, start=1):
        new = train_step(weights, seed=version, density=density)
        write_delta(store, version, version - 1, weights, new, encoding=encoding)
        weights = new
    return weights


@pytest.mark.parametrize(
    "encodings", [["xor", "xor", "xor"], ["xor", "overwrite", "xor"], ["overwrite", "overwrite"], ["overwrite", "xor"]]
)
def test_a_chain_is_composed_and_committed_once(
    tiny_engine: Any, run_replica: Any, tmp_path: Path, encodings: list[str]
) -> None:
    async def body(replica: Any) -> None:
        # Dense enough that the same elements change in several deltas.
        final = write_chain(tmp_path / "store", replica.weights, encodings, density=0.3)
        replica.engine.events.clear()
        report = await replica.coordinator.sync(len(encodings))
        assert replica.engine.events.count("policy_commit") == 1
        assert report.previous_version == 0
        assert_held(replica, final)

    run_replica(tiny_engine, body)


def test_versions_one_after_the_other_keep_the_ledger_true(tiny_engine: Any, run_replica: Any, tmp_path: Path) -> None:
    import zlib

    async def body(replica: Any) -> None:
        weights = replica.weights
        for version in range(1, 6):
            new = train_step(weights, seed=version)
            checksum = ["adler32", "xxh3-128", "blake3"][version % 3]
            write_delta(tmp_path / "store", version, version - 1, weights, new, checksum=checksum)
            await replica.coordinator.sync(version)
            weights = new
        assert_held(replica, weights)
        assert replica.coordinator.ledger.adler32 == {name: zlib.adler32(data) for name, data in weights.items()}

    run_replica(tiny_engine, body)


def test_tied_embeddings_are_written_once_and_served(tied_engine: Any, run_replica: Any, tmp_path: Path) -> None:
    async def body(replica: Any) -> None:
        final = write_chain(tmp_path / "store", replica.weights, ["xor", "xor"])
        await replica.coordinator.sync(2)
        assert_held(replica, final)
        worker_model = replica.engine.llm.collective_rpc(lambda worker: worker.model_runner.model)[0]
        assert worker_model.lm_head.weight.data_ptr() == worker_model.model.embed_tokens.weight.data_ptr()

    run_replica(tied_engine, body)


@pytest.mark.parametrize("deltas_after", [0, 2])
def test_an_anchor_resets_the_chain_and_is_applied_in_place(
    tiny_engine: Any, run_replica: Any, tmp_path: Path, deltas_after: int
) -> None:
    async def body(replica: Any) -> None:
        store = tmp_path / "store"
        weights = train_step(replica.weights, seed=7, density=0.9)
        write_anchor(store, 10, replica.engine.checkpoint, weights)
        for version in range(11, 11 + deltas_after):
            new = train_step(weights, seed=version)
            write_delta(store, version, version - 1, weights, new)
            weights = new
        report = await replica.coordinator.sync(10 + deltas_after)
        assert report.density is None
        assert_held(replica, weights)

    run_replica(tiny_engine, body)


def test_an_anchor_that_lacks_a_served_tensor_is_refused(tiny_engine: Any, run_replica: Any, tmp_path: Path) -> None:
    async def body(replica: Any) -> None:
        weights = dict(replica.weights)
        weights.pop("model.norm.weight")
        write_anchor(tmp_path / "store", 3, replica.engine.checkpoint, weights)
        with pytest.raises(PublicationError, match=r"model\.norm\.weight") as refused:
            await replica.coordinator.sync(3)
        assert refused.value.rejection is Rejection.TENSOR_MISSING
        assert_held(replica, replica.weights)

    run_replica(tiny_engine, body)


def test_an_empty_delta_is_a_version_that_changes_nothing(tiny_engine: Any, run_replica: Any, tmp_path: Path) -> None:
    async def body(replica: Any) -> None:
        write_delta(tmp_path / "store", 1, 0, replica.weights, replica.weights)
        report = await replica.coordinator.sync(1)
        assert (report.version, report.changed_elements) == (1, 0)
        assert_held(replica, replica.weights)

    run_replica(tiny_engine, body)


def test_a_gap_in_the_chain_is_named(tiny_engine: Any, run_replica: Any, tmp_path: Path) -> None:
    async def body(replica: Any) -> None:
        write_delta(tmp_path / "store", 3, 2, replica.weights, train_step(replica.weights, seed=1))
        with pytest.raises(PublicationError, match="2") as refused:
            await replica.coordinator.sync(3)
        assert refused.value.rejection is Rejection.CHAIN_GAP

    run_replica(tiny_engine, body)


def test_a_publisher_that_died_is_ignored_until_its_index_is_there(
    tiny_engine: Any, run_replica: Any, tmp_path: Path
) -> None:
    async def body(replica: Any) -> None:
        new = train_step(replica.weights, seed=1)
        version = write_delta(tmp_path / "store", 1, 0, replica.weights, new)
        index = version / "model.safetensors.index.json"
        text = index.read_text()
        index.unlink()
        with pytest.raises(PublicationError) as refused:
            await replica.coordinator.sync(1)
        assert refused.value.rejection is Rejection.INDEX_MISSING
        index.write_text(text)
        await replica.coordinator.sync(1)
        assert_held(replica, new)

    run_replica(tiny_engine, body)


def test_the_follower_takes_what_appears_and_survives_a_bad_version(
    tiny_engine: Any, run_replica: Any, tmp_path: Path
) -> None:
    async def body(replica: Any) -> None:
        store = tmp_path / "store"
        store.mkdir()
        follower = Follower(
            open_store(str(store)),
            replica.coordinator,
            interval_s=0.02,
            on_poisoned=lambda error: pytest.fail(str(error)),
        )
        following = asyncio.create_task(follower.run())
        await asyncio.wait_for(follower.caught_up.wait(), 10)
        first = train_step(replica.weights, seed=1)
        write_delta(store, 1, 0, replica.weights, first)
        await _until(lambda: replica.coordinator.version == 1)
        second = train_step(first, seed=2)
        write_delta(store, 2, 1, first, second, checksums={"model.norm.weight": "00000000"})
        await _until(lambda: replica.coordinator.state.value == "failed")
        assert replica.coordinator.version == 1
        write_delta(store, 2, 1, first, second)
        await _until(lambda: replica.coordinator.version == 2)
        following.cancel()
        assert_held(replica, second)

    run_replica(tiny_engine, body)


def test_the_recorded_ledger_reads_back(tiny_engine: Any, run_replica: Any, tmp_path: Path) -> None:
    async def body(replica: Any) -> None:
        replica.coordinator._ledger_path = tmp_path / "ledger.parquet"
        write_delta(tmp_path / "store", 1, 0, replica.weights, train_step(replica.weights, seed=1))
        await replica.coordinator.sync(1)
        assert Ledger.read(tmp_path / "ledger.parquet") == replica.coordinator.ledger

    run_replica(tiny_engine, body)


def test_a_delta_with_the_keys_of_another_trainer_reads_unchanged(
    tiny_engine: Any, run_replica: Any, tmp_path: Path
) -> None:
    """slime adds keys of its own to the index and pads versions differently; a reader takes what it knows."""

    async def body(replica: Any) -> None:
        new = train_step(replica.weights, seed=1)
        version = write_delta(tmp_path / "store", 1, 0, replica.weights, new, checksum="xxh3-128", level=1, shards=4)
        index = version / "model.safetensors.index.json"
        document = json.loads(index.read_text())
        document["metadata"] |= {"version": "1", "base_version": "0", "total_size": 123, "trainer": {"step": 9}}
        index.write_text(json.dumps(document))
        await replica.coordinator.sync(1)
        assert_held(replica, new)

    run_replica(tiny_engine, body)


async def _until(condition: Any, timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)
