"""vLLM's own offloading as host tier, made fit for policy changes; on CPU engines with a copying thread of ours.

Namespaces need nothing here: its keys are vLLM's block hashes, which carry the salt. What is added:
- a waiting request can be moved to another namespace (its keys are derived once);
- generated tokens are offloaded too, since agents send their output back (`offload_prompt_only: false`);
- a worker for CPU engines, which vLLM's spec refuses: the copies are plain memory copies.
Old namespaces are not swept: hashes do not tell theirs, and nobody touches old entries, so LRU takes them first.
Knows vLLM 0.32.0.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.request import Request


class PolicyOffloadingConnector(OffloadingConnector):  # type: ignore[misc]
    """See the module."""

    def move_request(self, request: Request) -> None:
        """Call after the request's block hashes were computed again, while nothing is scheduled.

        A load in flight ends under the keys it was started with; the scheduler gives its blocks back.
        """
        status = self.scheduler._req_status.get(request.request_id)
        if status is None:
            return
        for group in status.group_states:
            group.offload_keys.clear()
            group.next_stored_chunk_idx = 0
            group.num_hit_chunks = 0
        status.partial_tail_boundary = None

    def transfers_in_flight(self) -> dict[str, int]:
        """On a worker: jobs that have not ended."""
        worker = self.connector_worker
        loads = len(worker._load_jobs)
        in_flight = getattr(worker.worker, "jobs_in_flight", 0)
        return {"stores": max(0, in_flight - loads) + len(worker._unsubmitted_store_jobs), "loads": loads}

    def stored_chunks(self, block_hashes: list[bytes]) -> int:
        """In the scheduler: how many of these blocks' chunks can be loaded."""
        from vllm.v1.kv_offload.base import make_offload_key

        policy = self.scheduler.manager._policy
        chunks = [policy.get(make_offload_key(block_hash, 0)) for block_hash in block_hashes]
        return sum(chunk is not None and chunk.is_ready for chunk in chunks)

    def usage(self) -> dict[str, int]:
        """In the scheduler: `{"entries", "capacity_entries", "entry_bytes"}`, all ranks together."""
        manager = self.scheduler.manager
        capacity_bytes = self._kv_transfer_config.get_from_extra_config("cpu_bytes_to_use", 0)
        return {
            "entries": manager._num_allocated_chunks - len(manager._free_list),
            "capacity_entries": manager._num_chunks,
            "entry_bytes": capacity_bytes // max(1, manager._num_chunks),
        }


class HostOffloadingSpec(CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's CPU spec, on a CPU engine with a worker that copies memory."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if any(cache.tensor.device.type != "cpu" for cache in kv_caches.tensors):
            return super().get_worker(kv_caches)
        return MemoryCopyWorker(kv_caches, self.num_chunks, self.blocks_per_chunk)


class MemoryCopyWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies KV pages between two places in host memory, on one thread, in the order of submission.

    Holds, per KV tensor of shape (blocks, page bytes), a pool of shape (chunks, page bytes), int8.
    """

    def __init__(self, kv_caches: CanonicalKVCaches, chunks: int, blocks_per_chunk: int) -> None:
        if blocks_per_chunk != 1:
            raise ValueError(f"expected chunks of one block, found {blocks_per_chunk}")
        self._engine = [cache.tensor for cache in kv_caches.tensors]
        self._pool = [torch.empty((chunks, tensor.shape[1]), dtype=torch.int8) for tensor in self._engine]
        self._page_bytes = sum(tensor.shape[1] for tensor in self._engine)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-copy")
        self._jobs: dict[int, Future[TransferResult]] = {}

    @property
    def jobs_in_flight(self) -> int:
        return sum(not job.done() for job in self._jobs.values())

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Any) -> bool:
        self._jobs[job_id] = self._thread.submit(
            self._copy, job_id, self._engine, src_spec.block_ids, self._pool, dst_spec.block_ids
        )
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: GPULoadStoreSpec) -> bool:
        self._jobs[job_id] = self._thread.submit(
            self._copy, job_id, self._pool, src_spec.block_ids, self._engine, dst_spec.block_ids
        )
        return True

    def _copy(self, job_id: int, sources: Any, source_ids: Any, destinations: Any, ids: Any) -> TransferResult:
        start = time.perf_counter()
        if len(source_ids) != len(ids):
            raise ValueError(f"job {job_id}: {len(source_ids)} source pages for {len(ids)} destinations")
        for source, destination in zip(sources, destinations, strict=True):
            for source_id, destination_id in zip(source_ids.tolist(), ids.tolist(), strict=True):
                destination[destination_id].copy_(source[source_id])
        return TransferResult(job_id, True, len(ids) * self._page_bytes, time.perf_counter() - start)

    def get_finished(self) -> list[TransferResult]:
        ended = [job_id for job_id, job in self._jobs.items() if job.done()]
        return [self._jobs.pop(job_id).result() for job_id in ended]

    def wait(self, job_ids: set[int]) -> None:
        for job_id in job_ids:
            if job_id in self._jobs:
                self._jobs[job_id].result()

    def shutdown(self) -> None:
        self._thread.shutdown(wait=True)
