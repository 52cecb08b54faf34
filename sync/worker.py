"""The worker extension: what `collective_rpc` may call in each vLLM worker. Knows vLLM.

Calls only start work or read its state; the work runs on the stage thread, while the worker goes on serving. The
exceptions are commit and undo, which the coordinator calls inside the pause and which are one write per destination.
Arguments and results are plain types (str, int, bool, list, dict, bytes): anything else breaks the engine's RPC.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from sync.channel import Channel, connect
from sync.checkpoint import CheckpointDirectory
from sync.memory import EngineMemory
from sync.segments import read_batch
from sync.stage import Stager, WritePlan
from sync.trace import trace_layout
from sync.verify import verify_rank

STAGE_NICENESS = 10


class StagingAborted(Exception):
    """The planner gave the version up; its own error says why."""


class WorkerPolicy:
    """One rank's share of the policy: its layout, its engine memory, the plan in the making and the sealed one."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._thread = ThreadPoolExecutor(1, "policy-stage", initializer=_lower_priority)
        self._future: Future[dict[str, Any]] | None = None
        self._progress = (0, 0)
        self._memory: EngineMemory | None = None
        self._plan: WritePlan | None = None

    @property
    def model(self) -> torch.nn.Module:
        model: torch.nn.Module = self._worker.model_runner.model
        return model

    @property
    def memory(self) -> EngineMemory:
        if self._memory is None:
            raise RuntimeError("the layout was not traced yet")
        return self._memory

    def start(self, task: str, arguments: dict[str, Any]) -> None:
        """Starts a task on the stage thread. One at a time: RuntimeError while another runs."""
        if self._future is not None and not self._future.done():
            raise RuntimeError(f"cannot start {task!r}: the stage thread is busy")
        tasks: dict[str, Callable[..., dict[str, Any]]] = {
            "trace": self._trace,
            "verify": self._verify,
            "stage": self._stage,
        }
        self._progress = (0, 0)
        self._future = self._thread.submit(self._run, tasks[task], arguments)

    def status(self) -> dict[str, Any]:
        """`{"state": "idle" | "running" | "done" | "failed", "progress": [done, total], ...}`.

        A finished task's `result` (dict) or `error` (str) is included.
        """
        progress = list(self._progress)
        if self._future is None:
            return {"state": "idle", "progress": progress}
        if not self._future.done():
            return {"state": "running", "progress": progress}
        error = self._future.exception()
        if error is not None:
            aborted = isinstance(error, StagingAborted)
            text = f"{type(error).__name__}: {error}"
            return {"state": "failed", "progress": progress, "error": text, "aborted": aborted}
        return {"state": "done", "progress": progress, "result": self._future.result()}

    def _run(self, task: Callable[..., dict[str, Any]], arguments: dict[str, Any]) -> dict[str, Any]:
        with torch.inference_mode(), _background_stream(self._device):
            return task(**arguments)

    @property
    def _device(self) -> torch.device:
        return torch.device(self._worker.device)

    def _trace(self, checkpoint: str) -> dict[str, Any]:
        tensors = CheckpointDirectory(checkpoint).tensors
        rank = self._worker.rank
        layout = trace_layout(self._worker.vllm_config, self.model, tensors, rank)
        self._memory = EngineMemory(self.model, layout)
        return {"layout": layout.to_ipc()}

    def _verify(self, checkpoint: str, world_size: int) -> dict[str, Any]:
        proof = verify_rank(self.memory, CheckpointDirectory(checkpoint), world_size, self._report_progress)
        return proof.to_message()

    def _report_progress(self, done: int, total: int) -> None:
        self._progress = (done, total)

    def _stage(self, version: int, address: str) -> dict[str, Any]:
        """Receives one version from the planner, stages and seals it. The plan waits for `commit` or `discard`."""
        self._plan = None
        channel = connect(address)
        try:
            channel.send({"kind": "rank", "rank": self._worker.rank, "version": version})
            stager = Stager(self.memory, version)
            while self._receive(channel, stager):
                pass
            self._plan = stager.seal()
        finally:
            channel.close()
        _synchronise(self._device)
        return {
            "corrections": dict(self._plan.corrections),
            "elements": self._plan.elements,
            "plan_bytes": self._plan.size_bytes,
        }

    def _receive(self, channel: Channel, stager: Stager) -> bool:
        """Handles one message; False at the end of the version."""
        message, descriptor = channel.receive()
        try:
            kind = message["kind"]
            if kind == "end":
                return False
            if kind == "abort":
                raise StagingAborted(message["reason"])
            if descriptor is None:
                raise RuntimeError(f"message {kind!r} without its shared memory")
            if kind == "batch":
                stager.add_batch(read_batch(descriptor))
            elif kind == "dense":
                stager.add_dense(message["tensor"], _shared_bytes(descriptor, mmap.ACCESS_COPY), message["counted"])
            elif kind == "overlay":
                stager.overlay(message["tensor"], _shared_bytes(descriptor, mmap.ACCESS_WRITE))
                channel.send({"kind": "overlaid", "tensor": message["tensor"]})
            else:
                raise RuntimeError(f"unknown message {kind!r} from the planner")
            return True
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def commit(self, version: int) -> int:
        """Writes the sealed plan of `version`; returns the elements written. Call only inside the pause."""
        plan = self._sealed(version)
        with torch.inference_mode():
            plan.commit(self.memory)
            _synchronise(self._device)
        return plan.elements

    def undo(self, version: int) -> int:
        """Writes the old values of `version`'s plan back. Call only inside the pause."""
        plan = self._sealed(version)
        with torch.inference_mode():
            plan.undo(self.memory)
            _synchronise(self._device)
        return plan.elements

    def discard(self) -> None:
        """Drops the sealed plan, after it was published or given up."""
        self._plan = None

    def _sealed(self, version: int) -> WritePlan:
        if self._plan is None or self._plan.version != version:
            found = "none" if self._plan is None else f"version {self._plan.version}"
            raise RuntimeError(f"commit of version {version}: the sealed plan is {found}")
        return self._plan


class PolicyWorkerExtension:
    """Mixed into vLLM's worker by `worker_extension_cls`; every method is one `collective_rpc`."""

    _policy_state: WorkerPolicy

    def _policy(self) -> WorkerPolicy:
        if not hasattr(self, "_policy_state"):
            self._policy_state = WorkerPolicy(self)
        return self._policy_state

    def policy_start(self, task: str, arguments: dict[str, Any]) -> None:
        self._policy().start(task, arguments)

    def policy_status(self) -> dict[str, Any]:
        return self._policy().status()

    def policy_commit(self, version: int) -> int:
        return self._policy().commit(version)

    def policy_undo(self, version: int) -> int:
        return self._policy().undo(version)

    def policy_discard(self) -> None:
        self._policy().discard()


def _lower_priority() -> None:
    """Serving goes first: the stage thread, and compute threads that it starts, run at low priority."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), STAGE_NICENESS)


@contextlib.contextmanager
def _background_stream(device: torch.device) -> Iterator[None]:
    """On CUDA, a stream of the lowest priority beside the serving one; elsewhere nothing."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device, priority=0)):
        yield


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _shared_bytes(descriptor: int, access: int) -> torch.Tensor:
    """The memfd's content as a 1-D uint8 tensor that shares it (ACCESS_WRITE) or a private view (ACCESS_COPY)."""
    return torch.frombuffer(mmap.mmap(descriptor, 0, access=access), dtype=torch.uint8)
