"""Planning one chain: fetch, decode, compose, map, and send to the ranks. The planner process without its shell.

Nothing here knows old values. What cannot be judged without them (the Adler verdict) is left to the coordinator;
checksum formats that need whole new tensors are judged here, over bytes that the ranks overlay into shared memory.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from native import adler32
from sync.channel import Channel
from sync.checksums import checksum
from sync.compose import UNSIGNED_OF_SIZE, apply_dense, compose, decode_changes
from sync.errors import PublicationError, Rejection
from sync.format import AnchorTensor, DeltaTensor, fetch_anchor_shard, fetch_shard, resolve_chain
from sync.layout import CheckpointTensor
from sync.mapping import BatchBuilder, Changes, RoutedPart, Router
from sync.segments import write_batch
from sync.stores.base import Store
from sync.types import Chain, Checksum, ChecksumFormat, DeltaManifest, Manifest

Event = dict[str, Any]
Emit = Callable[[Event], None]


@dataclass(frozen=True)
class _Payload:
    """One tensor's payload in one delta of the chain."""

    manifest: DeltaManifest
    entry: DeltaTensor


class _Clock:
    """Seconds by phase, added up over threads."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._seconds[phase] += time.perf_counter() - start  # type: ignore[assignment]

    def as_ms(self) -> dict[str, float]:
        return {f"{phase}_ms": seconds * 1e3 for phase, seconds in self._seconds.items()}


class Planner:
    """Plans chains from one store for the ranks of one replica."""

    def __init__(self, store: Store, router: Router, threads: int) -> None:
        self._store = store
        self._router = router
        self._decoders = ThreadPoolExecutor(threads, "decode")
        self._fetchers = ThreadPoolExecutor(2, "fetch")
        self._tensor: Mapping[str, CheckpointTensor] = router.layouts[0].tensor

    def plan(self, serving: int, target: int, channels: Mapping[int, Channel], emit: Emit) -> Event:
        """Plans `serving -> target` and sends every rank its share, ended by an `end` message.

        Returns the `planned` event: expected Adler-32 by tensor (None where the verdict was reached here), counts,
        sizes and timings. Raises PublicationError, StoreError, LayoutError or ChannelClosed; the caller then tells
        the ranks to drop what they have.
        """
        start = time.perf_counter()
        clock = _Clock()
        with clock.measure("resolve"):
            chain = resolve_chain(self._store, serving, target)
            self._check_names(chain)
        emit(_resolved(chain))
        job = _Job(self, chain, channels, clock, emit)
        expected = job.send_anchor() if chain.anchor is not None else job.send_deltas()
        for channel in channels.values():
            channel.send({"kind": "end"})
        return {
            "event": "planned",
            "version": target,
            "expected": expected,
            "changed_elements": None if chain.anchor is not None else job.changed_elements,
            "total_elements": sum(self._tensor[name].elements for name in self._router.served),
            "payload_bytes": job.payload_bytes,
            "timings_ms": clock.as_ms() | {"plan_ms": (time.perf_counter() - start) * 1e3},
        }

    def _check_names(self, chain: Chain) -> None:
        """Rejects tensors that the engine does not serve (all of them named at once) or serves otherwise."""
        manifests: list[Manifest] = [*([chain.anchor] if chain.anchor else []), *chain.deltas]
        for manifest in manifests:
            unknown = sorted(set(manifest.weight_map) - self._router.served)
            # A checkpoint may carry tensors that the loader skips; in an anchor they change nothing that is served.
            if unknown and isinstance(manifest, DeltaManifest):
                raise PublicationError(
                    Rejection.UNKNOWN_TENSOR,
                    f"{len(unknown)} of {len(manifest.weight_map)} tensors are not served by this engine: "
                    f"{', '.join(unknown[:20])}{', ...' if len(unknown) > 20 else ''}",
                    version=manifest.version,
                )
            if isinstance(manifest, DeltaManifest):
                for name in manifest.weight_map:
                    self._check_shape(manifest, name)

    def _check_shape(self, manifest: DeltaManifest, name: str) -> None:
        served = self._tensor[name]
        dtype, shape = manifest.dtypes.get(name, served.dtype), manifest.shapes.get(name, served.shape)
        if (dtype, tuple(shape)) != (served.dtype, served.shape):
            raise PublicationError(
                Rejection.BAD_INDEX,
                f"published as {dtype} {list(shape)}, but the engine serves {served.dtype} {list(served.shape)}",
                version=manifest.version,
                tensor=name,
            )


class _Job:
    """One call of `Planner.plan`."""

    def __init__(
        self, planner: Planner, chain: Chain, channels: Mapping[int, Channel], clock: _Clock, emit: Emit
    ) -> None:
        self._planner = planner
        self._chain = chain
        self._channels = channels
        self._clock = clock
        self._emit = emit
        self._builders: dict[tuple[int, int], BatchBuilder] = {}
        self.changed_elements = 0
        self.payload_bytes = 0

    def send_deltas(self) -> dict[str, str | None]:
        """Sends sparse changes, shard by shard as they arrive. Returns the expected Adler-32 by tensor."""
        checksums: dict[str, Checksum] = {}
        done = 0
        total = len({name for delta in self._chain.deltas for name in delta.weight_map})
        for payloads in self._groups():
            # The largest first: what is left for the end is small, and no thread waits long for another.
            largest_first = sorted(payloads.items(), key=lambda item: -sum(len(step.entry.payload) for step in item[1]))
            results = [
                (name, self._planner._decoders.submit(self._decode_and_route, name, steps))
                for name, steps in largest_first
            ]
            for name, future in results:
                changes, routed = future.result()
                self.changed_elements += changes
                checksums[name] = _final_checksum(payloads[name])
                for rank, parts in routed:
                    self._send_parts(rank, self._planner._tensor[name].element_size, parts)
                done += 1
            self._emit({"event": "progress", "phase": "staging", "done": done, "total": total})
        for rank, element_size in list(self._builders):
            self._flush(rank, element_size)
        return {name: self._judge(name, expected) for name, expected in checksums.items()}

    def _groups(self) -> Iterator[dict[str, list[_Payload]]]:
        """Payloads to decode together, by tensor, oldest delta first; the next shard is fetched meanwhile.

        One delta goes shard by shard. In a longer chain a tensor's payloads may lie in any shard of each delta, so
        all (compressed, small) shards are fetched first.
        """
        keys = [(delta, file) for delta in self._chain.deltas for file in delta.files]
        ahead = 2 if len(self._chain.deltas) == 1 else len(keys)
        pending: list[Future[list[_Payload]]] = []
        gathered: dict[str, list[_Payload]] = {}
        for index in range(len(keys)):
            while len(pending) < len(keys) and len(pending) < index + 1 + ahead:
                pending.append(self._planner._fetchers.submit(self._fetch, *keys[len(pending)]))
            shard = pending[index].result()
            pending[index] = _DONE
            for payload in shard:
                gathered.setdefault(payload.entry.name, []).append(payload)
            if len(self._chain.deltas) == 1:
                yield gathered
                gathered = {}
        if gathered:
            yield gathered

    def _fetch(self, manifest: DeltaManifest, file: str) -> list[_Payload]:
        with self._clock.measure("fetch"):
            shard = fetch_shard(self._planner._store, manifest, file)
        self.payload_bytes += len(shard.buffer)
        return [_Payload(manifest, entry) for entry in shard]

    def _decode_and_route(self, name: str, steps: list[_Payload]) -> tuple[int, list[tuple[int, list[RoutedPart]]]]:
        with self._clock.measure("decode"):
            changes = self._decode(name, steps)
        with self._clock.measure("map"):
            return len(changes), list(self._planner._router.route(name, changes))

    def _decode(self, name: str, steps: list[_Payload]) -> Changes:
        tensor = self._planner._tensor[name]
        composed: Changes | None = None
        for step in steps:
            try:
                changes = decode_changes(step.entry.payload, step.manifest.encoding, tensor)
            except PublicationError as error:
                file = step.manifest.weight_map[name]
                raise error.at(version=step.manifest.version, file=file, tensor=name) from error
            composed = changes if composed is None else compose(composed, changes)
        assert composed is not None
        return composed

    def _send_parts(self, rank: int, element_size: int, parts: list[RoutedPart]) -> None:
        builder = self._builders.setdefault((rank, element_size), BatchBuilder())
        builder.add(parts)
        if builder.is_full:
            self._flush(rank, element_size)

    def _flush(self, rank: int, element_size: int) -> None:
        batch = self._builders[rank, element_size].take()
        if batch is None:
            return
        with self._clock.measure("send"):
            self._send_shared(rank, {"kind": "batch"}, write_batch(batch))

    def _send_shared(self, rank: int, message: Event, descriptor: int) -> None:
        """Sends a memfd and gives up this process's hold on it."""
        try:
            self._channels[rank].send(message, descriptor)
        finally:
            os.close(descriptor)

    def send_anchor(self) -> dict[str, str | None]:
        """Sends whole tensors of the anchor, later deltas applied; the ranks keep what differs from their memory."""
        anchor = self._chain.anchor
        assert anchor is not None
        served = self._planner._router.served
        if missing := sorted(served - set(anchor.weight_map)):
            raise PublicationError(
                Rejection.TENSOR_MISSING,
                f"the anchor lacks {len(missing)} of {len(served)} served tensors: {', '.join(missing[:20])}",
                version=anchor.version,
            )
        later: dict[str, list[_Payload]] = {}
        for group in self._groups():
            for name, steps in group.items():
                later.setdefault(name, []).extend(steps)
        expected: dict[str, str | None] = {}
        for file in anchor.files:
            with self._clock.measure("fetch"):
                shard = fetch_anchor_shard(self._planner._store, anchor, file)
            self.payload_bytes += len(shard.buffer)
            for entry in shard:
                if entry.name in served:
                    expected[entry.name] = self._send_whole(entry, later.get(entry.name, []), file)
            self._emit({"event": "progress", "phase": "staging", "done": len(expected), "total": len(served)})
        return expected

    def _send_whole(self, entry: AnchorTensor, steps: list[_Payload], file: str) -> str:
        tensor = self._planner._tensor[entry.name]
        version = self._chain.anchor.version if self._chain.anchor else self._chain.target
        if (entry.dtype, entry.shape) != (tensor.dtype, tensor.shape):
            raise PublicationError(
                Rejection.BAD_INDEX,
                f"published as {entry.dtype} {list(entry.shape)}, but the engine serves {tensor.dtype} "
                f"{list(tensor.shape)}",
                version=version,
                file=file,
                tensor=entry.name,
            )
        if entry.checksum is not None:
            _require(entry.checksum, checksum(entry.checksum.format, entry.data), version, file, entry.name)
        data = np.frombuffer(entry.data, np.uint8)
        if steps:
            data = data.copy()
            with self._clock.measure("decode"):
                apply_dense(self._decode(entry.name, steps), data.view(UNSIGNED_OF_SIZE[tensor.element_size]))
            final, last = _final_checksum(steps), steps[-1].manifest
            _require(final, checksum(final.format, data.data), last.version, last.weight_map[entry.name], entry.name)
        for rank in self._channels:
            counted = self._planner._router.counted_boxes(entry.name, rank)
            if not counted:
                continue
            descriptor = _shared_copy(data)
            self._send_shared(rank, {"kind": "dense", "tensor": entry.name, "counted": counted}, descriptor)
        return f"{adler32(data):08x}"

    def _judge(self, name: str, expected: Checksum) -> str | None:
        """The expected Adler-32; for other formats the verdict itself, over the new bytes of all ranks, and None."""
        if expected.format is ChecksumFormat.ADLER32:
            return expected.text
        with self._clock.measure("hash"):
            descriptor = os.memfd_create("rollout-overlay", os.MFD_CLOEXEC)
            try:
                os.ftruncate(descriptor, self._planner._tensor[name].size_bytes)
                for rank, channel in self._channels.items():
                    if self._planner._router.counted_boxes(name, rank):
                        channel.send({"kind": "overlay", "tensor": name}, descriptor)
                        channel.receive()
                with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                    found = checksum(expected.format, view)
            finally:
                os.close(descriptor)
        manifest = next(delta for delta in reversed(self._chain.deltas) if name in delta.weight_map)
        _require(expected, found, manifest.version, manifest.weight_map[name], name)
        return None


_DONE: Future[list[_Payload]] = Future()


def _final_checksum(steps: list[_Payload]) -> Checksum:
    last = steps[-1]
    return Checksum(last.manifest.checksum_format, last.entry.checksum)


def _require(expected: Checksum, found: str, version: int, file: str, tensor: str) -> None:
    if found != expected.text:
        raise PublicationError(
            Rejection.CHECKSUM_MISMATCH,
            f"the new bytes' {expected.format.value} is {found}, the trainer published {expected.text}: the delta is "
            "corrupt, or was computed against another parent",
            version=version,
            file=file,
            tensor=tensor,
        )


def _shared_copy(data: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    descriptor = os.memfd_create("rollout-tensor", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb", buffering=0) as sink:
        view = data.data
        while view:
            view = view[sink.write(view) :]
    return descriptor


def _resolved(chain: Chain) -> Event:
    """What the chain is, and the parent's Adler-32 where its first delta tells: a wrong parent is named as such."""
    first = chain.deltas[0] if chain.deltas and chain.anchor is None else None
    adler = first is not None and first.checksum_format is ChecksumFormat.ADLER32
    return {
        "event": "resolved",
        "anchor": None if chain.anchor is None else chain.anchor.version,
        "deltas": [delta.version for delta in chain.deltas],
        "parent_checksums": dict(first.parent_checksums) if first is not None and adler else {},
    }
