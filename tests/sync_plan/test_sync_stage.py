"""Staging, committing and undoing on memory of each device, and start-up verification, against plain numpy."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch

from sync.layout import CheckpointTensor, Destination, LayoutError, LayoutMap, make_box
from sync.mapping import BatchBuilder, Changes, Router
from sync.memory import EngineMemory
from sync.segments import read_batch, write_batch
from sync.stage import Stager
from sync.verify import verify_rank

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
        ],
    ),
]
ROWS, COLUMNS = 6, 8


class Fused(torch.nn.Module):
    """A stand-in for a served layer: two checkpoint matrices in one parameter, a router widened to fp32."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(2 * ROWS, COLUMNS, dtype=torch.bfloat16, device=device))
        self.router = torch.nn.Parameter(torch.zeros(COLUMNS, 4, dtype=torch.float32, device=device))


def layout() -> LayoutMap:
    tensors = (
        CheckpointTensor("first", "BF16", (ROWS, COLUMNS)),
        CheckpointTensor("second", "BF16", (ROWS, COLUMNS)),
        CheckpointTensor("router", "BF16", (4, COLUMNS)),
    )
    boxes = (
        make_box("first", "fused", (0, (COLUMNS, 1)), (0, (COLUMNS, 1)), (ROWS, COLUMNS)),
        make_box("second", "fused", (0, (COLUMNS, 1)), (ROWS * COLUMNS, (COLUMNS, 1)), (ROWS, COLUMNS)),
        make_box("router", "router", (0, (COLUMNS, 1)), (0, (1, 4)), (4, COLUMNS)),
    )
    sizes = {"fused": ("BF16", 2 * ROWS * COLUMNS), "router": ("F32", 4 * COLUMNS)}
    destinations = tuple(Destination(name, dtype, elements) for name, (dtype, elements) in sizes.items())
    return LayoutMap(0, tensors, destinations, boxes)


@pytest.fixture(params=DEVICES)
def served(request: pytest.FixtureRequest) -> tuple[EngineMemory, dict[str, np.ndarray]]:
    """Engine memory that holds random weights, and those weights as the checkpoint has them (u16)."""
    random = np.random.default_rng(3)
    weights = {tensor.name: random.integers(0, 1 << 15, tensor.elements, np.uint16) for tensor in layout().tensors}
    module = Fused(request.param)
    with torch.no_grad():
        fused = np.concatenate([weights["first"], weights["second"]]).view(np.int16)
        module.fused.view(torch.int16).copy_(torch.from_numpy(fused).reshape(2 * ROWS, COLUMNS))
        widened = (weights["router"].astype(np.uint32) << 16).view(np.int32).reshape(4, COLUMNS).T
        module.router.view(torch.int32).copy_(torch.from_numpy(widened.copy()))
    return EngineMemory(module, layout()), weights


def held(memory: EngineMemory) -> dict[str, np.ndarray]:
    return {
        box.tensor: memory.read_box(box).cpu().numpy().view(np.uint16).reshape(-1).copy() for box in memory.layout.boxes
    }


def stage(memory: EngineMemory, changes: dict[str, Changes]) -> Stager:
    builder, stager = BatchBuilder(), Stager(memory, 1)
    for name, change in changes.items():
        for _, parts in Router([memory.layout]).route(name, change):
            builder.add(parts)
    batch = builder.take()
    assert batch is not None
    stager.add_batch(read_batch(write_batch(batch)))
    return stager


def some_changes(weights: dict[str, np.ndarray]) -> tuple[dict[str, Changes], dict[str, np.ndarray]]:
    random = np.random.default_rng(4)
    changes, after = {}, {}
    for name, values in weights.items():
        positions = np.sort(random.choice(len(values), 9, replace=False)).astype(np.uint32)
        masks = random.integers(1, 1 << 15, 9).astype(np.uint16)
        changes[name] = Changes(positions, masks)
        after[name] = values.copy()
        after[name][positions] ^= masks
    return changes, after


def test_staging_writes_nothing_commit_writes_all_undo_restores(served: tuple[EngineMemory, dict]) -> None:
    memory, weights = served
    changes, after = some_changes(weights)
    plan = stage(memory, changes).seal()
    assert all(np.array_equal(held(memory)[name], weights[name]) for name in weights)
    for _ in range(2):  # absolute values: writing twice is harmless
        plan.commit(memory)
        assert all(np.array_equal(held(memory)[name], after[name]) for name in after)
    plan.undo(memory)
    assert all(np.array_equal(held(memory)[name], weights[name]) for name in weights)


def test_corrections_lead_from_the_old_checksum_to_the_new(served: tuple[EngineMemory, dict]) -> None:
    from native import adler32_add

    memory, weights = served
    changes, after = some_changes(weights)
    plan = stage(memory, changes).seal()
    for name in weights:
        old = zlib.adler32(weights[name].tobytes())
        assert adler32_add(old, plan.corrections[name]) == zlib.adler32(after[name].tobytes())


def test_a_whole_tensor_stages_only_what_differs(served: tuple[EngineMemory, dict]) -> None:
    memory, weights = served
    changes, after = some_changes(weights)
    stager = Stager(memory, 1)
    for name, values in after.items():
        published = torch.from_numpy(values.view(np.uint8).copy())
        assert stager.add_dense(name, published, [True]) == len(changes[name])
    plan = stager.seal()
    assert plan.elements == sum(len(change) for change in changes.values())
    assert plan.corrections == stage(memory, changes).seal().corrections
    plan.commit(memory)
    assert all(np.array_equal(held(memory)[name], after[name]) for name in after)


def test_overlaid_bytes_are_those_after_the_commit(served: tuple[EngineMemory, dict]) -> None:
    memory, weights = served
    changes, after = some_changes(weights)
    stager = stage(memory, changes)
    for name, values in after.items():
        target = torch.zeros(values.nbytes, dtype=torch.uint8)
        stager.overlay(name, target)
        assert target.numpy().tobytes() == values.tobytes()
    assert all(np.array_equal(held(memory)[name], weights[name]) for name in weights)


def test_a_widened_value_that_no_bf16_widens_to_is_refused(served: tuple[EngineMemory, dict]) -> None:
    memory, weights = served
    memory.flat["router"][3] |= 1
    with pytest.raises(LayoutError, match="router"):
        stage(memory, {"router": Changes(np.arange(len(weights["router"]), dtype=np.uint32), np.ones(32, np.uint16))})


def test_verification_names_the_tensor_the_count_and_the_first_element(served: tuple[EngineMemory, dict]) -> None:
    memory, weights = served
    shapes = {tensor.name: tensor.shape for tensor in memory.layout.tensors}
    published = {
        name: torch.from_numpy(values.view(np.int16)).view(torch.bfloat16).reshape(shapes[name])
        for name, values in weights.items()
    }
    seen: list[tuple[int, int]] = []
    proof = verify_rank(memory, published.items(), 1, lambda done, total: seen.append((done, total)))
    assert not proof.mismatches
    assert proof.compared_elements == sum(len(values) for values in weights.values())
    assert proof.adler32 == {name: zlib.adler32(values.tobytes()) for name, values in weights.items()}
    assert seen[-1][0] == seen[-1][1] == sum(values.nbytes for values in weights.values())
    for position in (5, 11):
        published["second"].view(torch.int16).reshape(-1)[position] ^= 1
    (mismatch,) = verify_rank(memory, published.items(), 1, lambda *_: None).mismatches
    assert (mismatch.tensor, mismatch.differing_elements, mismatch.first_position) == ("second", 2, 5)
