"""What is refused: a clear error, the old version served, no byte of engine memory changed, the next good one goes."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from independent_trainer import Weights, train_step, write_anchor, write_delta

from sync.coordinator import EnginePoisoned, SyncBusy, SyncState
from sync.errors import PublicationError, Rejection

pytestmark = pytest.mark.engine

NAME = "model.layers.0.mlp.down_proj.weight"
Spoil = Callable[[Path, Weights, Weights], None]


def _corrupt_shard(version: Path, parent: Weights, new: Weights) -> None:
    file = sorted(version.glob("*.safetensors"))[0]
    data = bytearray(file.read_bytes())
    data[-len(data) // 3] ^= 0x10
    file.write_bytes(data)


def _truncate_shard(version: Path, parent: Weights, new: Weights) -> None:
    file = sorted(version.glob("*.safetensors"))[0]
    file.write_bytes(file.read_bytes()[:-100])


def _remove_shard(version: Path, parent: Weights, new: Weights) -> None:
    sorted(version.glob("*.safetensors"))[0].unlink()


def _wrong_base(version: Path, parent: Weights, new: Weights) -> None:
    index = version / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"base_version": "000000"', '"base_version": "000041"'))


def _bad_checksum(version: Path, parent: Weights, new: Weights) -> None:
    write_delta(version.parent, 1, 0, parent, new, checksums={NAME: "deadbeef"})


def _wrong_parent(version: Path, parent: Weights, new: Weights) -> None:
    write_delta(version.parent, 1, 0, train_step(parent, seed=99), new)


def _named_wrong_parent(version: Path, parent: Weights, new: Weights) -> None:
    other = train_step(parent, seed=99)
    told = {"parent_checksums": {NAME: f"{zlib.adler32(other[NAME]):08x}"}}
    write_delta(version.parent, 1, 0, other, new, extra_metadata=told)


def _unknown_tensor(version: Path, parent: Weights, new: Weights) -> None:
    extra = {"model.layers.7.ghost.weight": np.ones(64, np.uint8), "lm_tail.weight": np.ones(64, np.uint8)}
    write_delta(version.parent, 1, 0, parent, new | extra)


def _other_length(version: Path, parent: Weights, new: Weights) -> None:
    longer = {NAME: np.concatenate([new[NAME], new[NAME]])}
    write_delta(version.parent, 1, 0, {}, longer)


@pytest.mark.parametrize(
    ("spoil", "rejections", "words"),
    [
        (_corrupt_shard, {Rejection.BAD_FRAME, Rejection.CHECKSUM_MISMATCH, Rejection.BAD_HEADER}, ["version 1"]),
        (_truncate_shard, {Rejection.BAD_OFFSETS, Rejection.FILE_TRUNCATED}, ["version 1", ".safetensors"]),
        (_remove_shard, {Rejection.FILE_MISSING}, ["version 1", ".safetensors"]),
        (_wrong_base, {Rejection.BAD_INDEX, Rejection.VERSION_MISMATCH, Rejection.CHAIN_GAP}, ["41"]),
        (_bad_checksum, {Rejection.CHECKSUM_MISMATCH}, ["version 1", NAME, "deadbeef"]),
        (_wrong_parent, {Rejection.CHECKSUM_MISMATCH}, ["version 1", "parent"]),
        (_named_wrong_parent, {Rejection.WRONG_PARENT}, ["version 1", NAME]),
        (_unknown_tensor, {Rejection.UNKNOWN_TENSOR}, ["version 1", "ghost", "lm_tail"]),
        (_other_length, {Rejection.BAD_FRAME}, ["version 1", NAME]),
    ],
)
def test_a_bad_publication_changes_nothing_and_the_next_good_one_goes_through(
    tiny_engine: Any, run_replica: Any, tmp_path: Path, spoil: Spoil, rejections: set[Rejection], words: list[str]
) -> None:
    async def body(replica: Any) -> None:
        store, parent = tmp_path / "store", replica.weights
        new = train_step(parent, seed=1)
        version = write_delta(store, 1, 0, parent, new)
        spoil(version, parent, new)
        before = replica.engine.checkpoint_bytes()
        replica.engine.events.clear()
        with pytest.raises(PublicationError) as refused:
            await replica.coordinator.sync(1)
        assert refused.value.rejection in rejections, refused.value
        for word in words:
            assert word in str(refused.value)
        assert replica.coordinator.state is SyncState.FAILED
        assert str(refused.value) in replica.coordinator.last_error
        assert replica.coordinator.version == 0
        assert "pause" not in replica.engine.events
        after = replica.engine.checkpoint_bytes()
        assert all(np.array_equal(after[name], before[name]) for name in before)
        shutil.rmtree(version)
        write_delta(store, 1, 0, parent, new)
        await replica.coordinator.sync(1)
        assert replica.coordinator.state is SyncState.IDLE
        held = replica.engine.checkpoint_bytes()
        assert all(np.array_equal(held[name], new[name]) for name in new)

    run_replica(tiny_engine, body)


class FailingEngine:
    """The real engine, with a fault injected into chosen worker calls, before or after they took effect."""

    def __init__(self, engine: Any, failing: dict[str, str]) -> None:
        self._engine = engine
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def collective(self, method: str, *arguments: Any) -> list[Any]:
        when = self._failing.get(method)
        if when == "before":
            raise RuntimeError(f"injected: {method} did not run")
        results = await self._engine.collective(method, *arguments)
        if when == "after":
            raise RuntimeError(f"injected: {method} ran, its answer was lost")
        return results


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failed_commit_is_undone_and_the_old_version_served(
    tiny_engine: Any, run_replica: Any, tmp_path: Path, when: str
) -> None:
    async def body(replica: Any) -> None:
        new = train_step(replica.weights, seed=1)
        write_delta(tmp_path / "store", 1, 0, replica.weights, new)
        real = replica.coordinator._engine
        replica.coordinator._engine = FailingEngine(real, {"policy_commit": when})
        with pytest.raises(RuntimeError, match="was undone"):
            await replica.coordinator.sync(1)
        assert replica.coordinator.version == 0
        assert replica.engine.events[-1] == "resume"
        held = replica.engine.checkpoint_bytes()
        assert all(np.array_equal(held[name], data) for name, data in replica.weights.items())
        replica.coordinator._engine = real
        await replica.coordinator.sync(1)
        assert replica.coordinator.version == 1

    run_replica(tiny_engine, body)


def test_a_commit_that_cannot_be_undone_poisons_the_engine_which_stays_paused(
    tiny_engine: Any, run_replica: Any, tmp_path: Path
) -> None:
    async def body(replica: Any) -> None:
        write_delta(tmp_path / "store", 1, 0, replica.weights, train_step(replica.weights, seed=1))
        failing = {"policy_commit": "after", "policy_undo": "before"}
        replica.coordinator._engine = FailingEngine(replica.coordinator._engine, failing)
        replica.engine.events.clear()
        with pytest.raises(EnginePoisoned):
            await replica.coordinator.sync(1)
        assert replica.coordinator.state is SyncState.POISONED
        assert "pause" in replica.engine.events
        assert "resume" not in replica.engine.events
        with pytest.raises(EnginePoisoned):
            await replica.coordinator.sync(1)

    run_replica(tiny_engine, body)


def test_a_second_sync_at_the_same_time_is_refused(tiny_engine: Any, run_replica: Any, tmp_path: Path) -> None:
    import asyncio

    async def body(replica: Any) -> None:
        write_delta(tmp_path / "store", 1, 0, replica.weights, train_step(replica.weights, seed=1))
        first = asyncio.create_task(replica.coordinator.sync(1))
        await asyncio.sleep(0)
        with pytest.raises(SyncBusy):
            await replica.coordinator.sync(1)
        await first
        assert replica.coordinator.version == 1

    run_replica(tiny_engine, body)


def test_a_planner_that_is_killed_is_started_again_by_the_next_sync(
    tiny_engine: Any, run_replica: Any, tmp_path: Path
) -> None:
    async def body(replica: Any) -> None:
        new = train_step(replica.weights, seed=1)
        write_delta(tmp_path / "store", 1, 0, replica.weights, new)
        await replica.planner.ensure_started()
        replica.planner._process.kill()
        await replica.planner._process.wait()
        await replica.coordinator.sync(1)
        held = replica.engine.checkpoint_bytes()
        assert all(np.array_equal(held[name], new[name]) for name in new)

    run_replica(tiny_engine, body)


def test_an_engine_that_does_not_equal_its_checkpoint_is_named_and_sync_refused(
    tiny_engine: Any, run_replica: Any, tmp_path: Path
) -> None:
    from sync.layout import LayoutError
    from sync.startup import prove_engine

    async def body(replica: Any) -> None:
        other = tmp_path / "other"
        stepped = dict(replica.weights) | {NAME: train_step({NAME: replica.weights[NAME]}, seed=3)[NAME]}
        write_anchor(tmp_path, 0, replica.engine.checkpoint, stepped)
        (tmp_path / "weight_v000000").rename(other)
        with pytest.raises(LayoutError, match=NAME):
            await prove_engine(replica.engine, other, 0, lambda *_: None)

    run_replica(tiny_engine, body)
