"""The LMCache server is killed while it is needed: requests finish, answers stay right, the tier comes back."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import zmq
from conftest import CHUNK, ServerThread, SteppedEngine, answer, assert_agree, cold, prompt, salt
from lmcache.v1.multiprocess.transport.zmq_impl.mq import RECONNECT_IVL_MAX_MS
from lmcache.v1.multiprocess.transport.zmq_impl.wire import decode_operation

pytestmark = pytest.mark.engine
Namespaces = tuple[str, str]


def reload_works(engine: SteppedEngine, own: str, seed: int) -> None:
    tokens = prompt(3, seed=seed)
    engine.run(tokens, own)
    gpu_hit = engine.run(tokens, own)
    engine.forget(tokens, own)
    reloaded = engine.run(tokens, own)
    assert reloaded.num_cached_tokens == 3 * CHUNK
    assert answer(reloaded) == answer(gpu_hit)


def test_killed_during_a_load(engine: SteppedEngine, host: ServerThread, namespaces: Namespaces) -> None:
    own = salt(namespaces[0])
    tokens = prompt(3, seed=20)
    engine.run(tokens, own)
    engine.forget(tokens, own)
    engine.signal_host_at_load(signal.SIGKILL)
    request_id = engine.add(tokens, own, 2)
    engine.step_until(lambda: engine.worker_connector.transfers_in_flight()["loads"] == 1)
    engine.lose_host()
    engine.step_until(lambda: request_id not in engine.scheduler.requests)
    (output,) = engine.finished.values()
    assert_agree(answer(output), cold(engine, tokens, 2))
    host.restart()
    engine.find_host()
    reload_works(engine, own, seed=21)


def test_killed_during_a_store(engine: SteppedEngine, host: ServerThread, namespaces: Namespaces) -> None:
    own = salt(namespaces[0])
    tokens = prompt(3, seed=22)
    engine.signal_host_at_store(signal.SIGKILL)
    engine.add(tokens, own, 2)
    engine.step_until(lambda: engine.worker_connector.transfers_in_flight()["stores"] == 1)
    engine.lose_host()
    engine.drain()
    (output,) = engine.finished.values()
    assert_agree(answer(output), cold(engine, tokens, 2))
    host.restart()
    engine.find_host()
    # Nothing that was queued for the dead server has reached this one.
    assert host.usage()["namespaces"] == {}
    reload_works(engine, own, seed=23)


def test_nothing_queued_for_a_dead_server_reaches_the_next(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    """A store names blocks by number: a server that gets it late stores what those blocks hold by then."""
    own = salt(namespaces[0])
    engine.signal_host_at_store(signal.SIGKILL)
    engine.add(prompt(3, seed=30), own, 2)
    engine.step_until(lambda: engine.worker_connector.transfers_in_flight()["stores"] == 1)
    lookup_id = engine.add(prompt(3, seed=31), own, 2)
    engine.step_until(lambda: lookup_id in engine.connector.scheduler_adapter._unacked_lookups)
    engine.lose_host()
    worker, scheduler = engine.worker_connector.worker_adapter, engine.connector.scheduler_adapter
    clients = [worker.req_client, *scheduler.req_clients.values()]
    assert received_at(host.server.address.rpc_url, clients) == ["ping"] * len(clients)
    host.restart()
    engine.find_host()
    engine.drain()
    reload_works(engine, own, seed=32)


def received_at(rpc_url: str, clients: list[Any]) -> list[str]:
    """The operations that arrive at an address where the server was, once each client has sent a ping.

    A client that still holds something for the dead server tries again within LMCache's longest reconnect interval.
    """
    received = []
    with zmq.Context.instance().socket(zmq.ROUTER) as next_server:
        next_server.setsockopt(zmq.LINGER, 0)
        next_server.bind(rpc_url)
        for client in clients:
            client.ping(None)
        while next_server.poll(3 * RECONNECT_IVL_MAX_MS):
            _, _, operation, *_ = next_server.recv_multipart()
            received.append(decode_operation(operation))
    return received


def test_killed_during_a_pause(engine: SteppedEngine, host: ServerThread, namespaces: Namespaces) -> None:
    old, new = namespaces
    tokens = prompt(3, seed=24)
    engine.run(tokens, salt(old))
    engine.forget(tokens, salt(old))
    engine.signal_host_at_load(signal.SIGSTOP)
    request_id = engine.add(tokens, salt(old), 2)
    engine.step_until(lambda: engine.worker_connector.transfers_in_flight()["loads"] == 1)
    engine.settle()
    engine.pause()
    host.signal(signal.SIGKILL)
    engine.lose_host()
    report = engine.enter(new)
    engine.shift_weights(0.05)
    assert report.moved == [request_id]
    engine.drain()
    (output,) = engine.finished.values()
    assert_agree(answer(output), cold(engine, tokens, 2))
    host.restart()
    engine.find_host()
    reload_works(engine, salt(new), seed=25)


def test_lookup_that_the_server_never_answers_is_a_miss(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    own = salt(namespaces[0])
    tokens = prompt(3, seed=26)
    engine.run(tokens, own)
    engine.forget(tokens, own)
    host.signal(signal.SIGSTOP)
    request_id = engine.add(tokens, own, 2)
    engine.step_until(lambda: request_id in engine.connector.scheduler_adapter._unacked_lookups)
    host.signal(signal.SIGKILL)
    engine.lose_host()
    engine.drain()
    (output,) = engine.finished.values()
    assert output.num_cached_tokens == 0
    assert_agree(answer(output), cold(engine, tokens, 2))
    host.restart()
    engine.find_host()
    reload_works(engine, own, seed=27)


def test_what_a_failed_load_left_out_is_never_stored(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    own = salt(namespaces[0])
    tokens = prompt(7, seed=28, tail=60)
    engine.run(tokens[: 3 * CHUNK + 1], own)
    engine.core.reset_prefix_cache()
    # The first chunk is in GPU memory, two more are in the host tier.
    engine.run(tokens[: CHUNK + 1], own)
    # Somebody who decodes takes a token of each step, so that prefill ends inside a block: at 128 + 511.
    engine.add(prompt(1, seed=29), salt(namespaces[0], "other"), 100)
    engine.step_until(lambda: engine.scheduler.running and engine.scheduler.running[0].num_output_tokens > 0)
    engine.signal_host_at_load(signal.SIGKILL)
    request_id = engine.add(tokens, own, 2)
    engine.step_until(lambda: engine.worker_connector.transfers_in_flight()["loads"] == 1)
    engine.lose_host()
    engine.step_until(lambda: request_id in engine.scheduler.failed_recving_kv_req_ids)
    assert engine.request(request_id).num_computed_tokens == CHUNK
    # A new server is there for the stores of what is computed instead.
    host.restart()
    engine.find_host()
    engine.drain()
    assert host.entries(namespaces[0]) == 7
    engine.core.reset_prefix_cache()
    reloaded = engine.run(tokens, own, 2)
    assert reloaded.num_cached_tokens == 7 * CHUNK
    assert_agree(answer(reloaded), cold(engine, tokens, 2))
