"""A real vLLM engine in this process, and the whole sync path around it: planner process, stage thread, coordinator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from independent_trainer import Weights, read_checkpoint

from sync.coordinator import Coordinator
from sync.planner_client import PlannerClient
from sync.startup import ProvenEngine, prove_engine

Result = TypeVar("Result")


class InProcessEngine:
    """The engine port over an in-process `LLM`. No requests run during a sync here, so a pause has nothing to do."""

    def __init__(self, llm: Any, checkpoint: Path) -> None:
        self.llm = llm
        self.checkpoint = checkpoint
        self.events: list[str] = []

    async def collective(self, method: str, *arguments: Any) -> list[Any]:
        self.events.append(method)
        return self.llm.collective_rpc(method, args=arguments)

    async def pause(self) -> None:
        self.events.append("pause")

    async def enter_policy(self, version: int) -> None:
        self.events.append(f"enter {version}")

    async def resume(self) -> None:
        self.events.append("resume")

    def memory(self) -> Any:
        return self.llm.collective_rpc(lambda worker: worker._policy().memory)[0]

    def checkpoint_bytes(self) -> Weights:
        """What engine memory holds, as checkpoint tensors, read back through the layout map."""
        memory = self.memory()
        read: Weights = {}
        for tensor in memory.layout.tensors:
            flat = np.zeros(tensor.elements, f"u{tensor.element_size}")
            for box in memory.layout.boxes_of.get(tensor.name, ()):
                strides = tuple(stride * tensor.element_size for stride in box.source_strides)
                block = np.lib.stride_tricks.as_strided(flat[box.source_offset :], box.extents, strides)
                block[...] = memory.read_box(box).numpy().view(f"u{tensor.element_size}")
            read[tensor.name] = flat.view(np.uint8)
        return read


class Replica:
    """A started replica: the engine, what start-up proved, and a coordinator over a store in a temporary directory."""

    def __init__(self, engine: InProcessEngine, proven: ProvenEngine, store: str) -> None:
        self.engine = engine
        self.proven = proven
        self.planner = PlannerClient(store, proven.layouts, 2)
        self.coordinator = Coordinator(engine, self.planner, proven.ledger)
        self.weights, _ = read_checkpoint(engine.checkpoint)


def start_engine(checkpoint: Path) -> Iterator[InProcessEngine]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["ROLLOUT_SERVE"] = "1"
    from vllm import LLM

    llm = LLM(
        str(checkpoint),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        worker_extension_cls="sync.worker.PolicyWorkerExtension",
    )
    yield InProcessEngine(llm, checkpoint)
    llm.llm_engine.engine_core.shutdown()


def run_on_replica(engine: InProcessEngine, body: Callable[[Replica], Awaitable[Result]], store: Path) -> Result:
    """Runs `body` against a replica that starts at version 0 and follows nothing; restores its weights afterwards."""

    async def session() -> Result:
        proven = await prove_engine(engine, engine.checkpoint, 0, lambda *_: None)
        memory = engine.memory()
        original = {name: flat.clone() for name, flat in memory.flat.items()}
        replica = Replica(engine, proven, str(store))
        try:
            return await body(replica)
        finally:
            await replica.planner.stop()
            with torch.inference_mode():
                for name, flat in memory.flat.items():
                    flat.copy_(original[name])

    return asyncio.run(session())
