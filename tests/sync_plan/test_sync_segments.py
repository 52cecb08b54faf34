"""Batches in shared memory, and the channel that carries their descriptors."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from sync.channel import ChannelClosed, accept, connect, listen, new_address
from sync.planner import read_layouts, write_layouts
from sync.segments import ElementBatch, Segment, read_batch, write_batch


def batch(keeps: bool) -> ElementBatch:
    return ElementBatch(
        (Segment("a", "x", 0, 2, True), Segment("b", "y", 2, 1, False)),
        np.array([5, 6, 1 << 33], np.uint64),
        np.array([0, 1, 7], np.uint32),
        np.array([1, 2, 0xFFFF], np.uint16),
        np.array([0, 0xFFFF, 0xFF], np.uint16) if keeps else None,
    )


def same(first: ElementBatch, second: ElementBatch) -> bool:
    arrays = ("destination_offsets", "positions", "masks", "keeps")
    return first.segments == second.segments and all(
        np.array_equal(getattr(first, name), getattr(second, name))
        if getattr(first, name) is not None
        else getattr(second, name) is None
        for name in arrays
    )


@pytest.mark.parametrize("keeps", [False, True])
def test_a_batch_reads_back_from_shared_memory_without_a_copy(keeps: bool) -> None:
    descriptor = write_batch(batch(keeps))
    read = read_batch(descriptor)
    os.close(descriptor)
    assert same(read, batch(keeps))
    assert not read.masks.flags.owndata
    assert not read.masks.flags.writeable


def test_descriptors_travel_with_messages_and_arrive_in_order() -> None:
    address = new_address()
    with listen(address) as server:
        received = []

        def serve() -> None:
            channel = accept(server)
            for _ in range(3):
                message, descriptor = channel.receive()
                assert descriptor is not None
                received.append((message["index"], same(read_batch(descriptor), batch(True))))
                os.close(descriptor)
            channel.close()

        thread = threading.Thread(target=serve)
        thread.start()
        channel = connect(address)
        for index in range(3):
            descriptor = write_batch(batch(True))
            channel.send({"index": index}, descriptor)
            os.close(descriptor)
        thread.join()
        with pytest.raises(ChannelClosed):
            channel.receive()
        channel.close()
    assert received == [(0, True), (1, True), (2, True)]


def test_an_oversized_message_is_refused_before_it_is_sent() -> None:
    address = new_address()
    with listen(address):
        channel = connect(address)
        with pytest.raises(ValueError, match="limit"):
            channel.send({"text": "x" * 100_000})
        channel.close()


def test_no_shared_memory_is_left_behind_in_any_file_system() -> None:
    before = set(os.listdir("/dev/shm"))
    descriptor = write_batch(batch(True))
    assert set(os.listdir("/dev/shm")) == before
    os.close(descriptor)


def test_layouts_are_read_again_by_every_planner() -> None:
    from test_sync_mapping import column_parallel

    layouts = column_parallel(2, 4, 2)
    descriptor = write_layouts(layouts)
    assert read_layouts(descriptor) == layouts == read_layouts(descriptor)
    os.close(descriptor)
