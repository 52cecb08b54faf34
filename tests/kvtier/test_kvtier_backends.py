"""Both backends by the same rules, against an engine that was started fresh: what comes back from the host tier is the
GPU hit's answer to the last bit, and after an update nobody gets anything but the new weights' answer.

Each backend has an engine of its own in a process of its own (connectors are global to theirs); so has the oracle.
"""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CHUNK, Answer, ServerThread, SteppedEngine, answer, prompt, salt, start_llm

from kvtier.namespace import Namespace
from kvtier.types import Backend
from kvtier.wiring import lmcache_transfer_config, native_transfer_config

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(400)]

OLD, NEW = salt(Namespace(0).name), salt(Namespace(1).name)
STEP = 0.05
TOKENS = 4
# Where the prompt's KV of the old version is when the update begins.
PLACES = {"gpu": prompt(3, seed=60), "host": prompt(3, seed=61), "in flight": prompt(2, seed=62)}
BACKENDS = [Backend.LMCACHE, Backend.NATIVE]


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


class Tiered:
    """An engine with a host tier of either kind, and the few things that differ between them."""

    def __init__(self, backend: Backend, checkpoint: str, dtype: str) -> None:
        self.host: ServerThread | None = None
        if backend is Backend.LMCACHE:
            self.host = ServerThread(128 << 20, Path(tempfile.mkdtemp(prefix="kv-backends-")))
            transfer = lmcache_transfer_config(self.host.server.address)
        else:
            transfer = native_transfer_config(64 << 20)
        self.engine = SteppedEngine(start_llm(Path(checkpoint), transfer, dtype), self.host)

    def stored(self, tokens: list[int], own: str) -> int:
        """Chunks of the prompt that can be loaded; for LMCache, entries of its namespace."""
        if self.host is not None:
            return self.host.entries(own)
        from kvtier.scheduler import prompt_hashes

        return int(self.engine.connector.stored_chunks(prompt_hashes(self.engine.core, tokens, own)))

    def hold_next_store(self) -> Callable[[], None]:
        """From now on a store does not end; returns what lets it."""
        if self.host is not None:
            self.engine.signal_host_at_store(signal.SIGSTOP)
            host = self.host
            return lambda: host.signal(signal.SIGCONT)
        gate = threading.Event()
        self.engine.worker_connector.connector_worker.worker._thread.submit(gate.wait)
        return gate.set

    def close(self) -> None:
        self.engine.llm.llm_engine.engine_core.shutdown()
        if self.host is not None:
            self.host.stop()


def reloads(backend: Backend, checkpoint: str, dtype: str) -> dict[str, Any]:
    """`{case: (GPU hit, reload, their cached tokens)}`."""
    tiered = Tiered(backend, checkpoint, dtype)
    engine, found = tiered.engine, {}

    def compare(case: str, tokens: list[int], forget_from: int = 0) -> None:
        """`forget_from`: chunks that stay in GPU memory."""
        gpu_hit = engine.run(tokens, OLD, TOKENS)
        if forget_from:
            forget_tail(engine, tokens, forget_from)
        else:
            assert engine.forget(tokens, OLD) > 0
        reloaded = engine.run(tokens, OLD, TOKENS)
        found[case] = answer(gpu_hit), answer(reloaded), gpu_hit.num_cached_tokens, reloaded.num_cached_tokens

    whole = prompt(4, seed=50)
    engine.run(whole, OLD, TOKENS)
    compare("whole", whole)
    ends_with_chunk = prompt(3, seed=51, tail=0)
    engine.run(ends_with_chunk, OLD, TOKENS)
    compare("up to the last token", ends_with_chunk)
    split = prompt(5, seed=52)
    engine.run(split, OLD, TOKENS)
    compare("two chunks on the GPU, three in the tier", split, forget_from=2)
    # An agent's next turn: half of the second chunk was generated. Two callers, since asking stores the whole prompt.
    first, own, other = prompt(1, seed=53, tail=CHUNK // 2), OLD, salt(Namespace(0).name, "other")
    turn = engine.run(first, own, CHUNK)
    again = first + list(turn.outputs[0].token_ids) + prompt(0, seed=54)
    gpu_hit = engine.run(again, own, TOKENS)
    assert answer(engine.run(first, other, CHUNK)) == answer(turn)
    assert engine.forget(again, other) == 2
    reloaded = engine.run(again, other, TOKENS)
    found["generated tokens"] = answer(gpu_hit), answer(reloaded), gpu_hit.num_cached_tokens, reloaded.num_cached_tokens
    tiered.close()
    return found


def forget_tail(engine: SteppedEngine, tokens: list[int], kept: int) -> None:
    """Takes the chunks after the first `kept` out of the GPU's prefix cache."""
    from kvtier.scheduler import prompt_hashes

    manager = engine.scheduler.kv_cache_manager
    blocks = [
        block.block_id
        for block_hash in prompt_hashes(engine.core, tokens, OLD)[kept:]
        for block in manager.block_pool.get_cached_block(block_hash, [0]) or ()
    ]
    assert blocks
    manager.evict_blocks(set(blocks))


def update(backend: Backend, checkpoint: str) -> dict[str, Any]:
    """Old KV in GPU memory, in the host tier and on its way there; then the weights move."""
    tiered = Tiered(backend, checkpoint, "float32")
    engine = tiered.engine
    found: dict[str, Any] = {"before": {}, "cached before": {}, "after": {}, "cached": {}, "reloaded": {}, "hit": {}}
    for place in ("gpu", "host"):
        tokens = PLACES[place]
        found["before"][place] = answer(engine.run(tokens, OLD, TOKENS))
        if place == "host":
            engine.forget(tokens, OLD)
        found["cached before"][place] = engine.run(tokens, OLD, TOKENS).num_cached_tokens
    engine.forget(PLACES["host"], OLD)
    late = PLACES["in flight"]
    stored_before = tiered.stored(late, OLD)
    release = tiered.hold_next_store()
    engine.add(late, OLD, TOKENS)
    engine.step_until(lambda: engine.worker_connector.transfers_in_flight()["stores"] > 0)
    engine.enter(NEW)
    engine.shift_weights(STEP)
    found["landed before"] = tiered.stored(late, OLD) - stored_before if tiered.host is None else 0
    release()
    engine.drain()
    found["landed after"] = tiered.stored(late, OLD) - stored_before
    engine.finished.clear()
    engine.forget(late, OLD)
    for place, tokens in PLACES.items():
        output = engine.run(tokens, NEW, TOKENS)
        found["after"][place], found["cached"][place] = answer(output), output.num_cached_tokens
        gpu_hit = engine.run(tokens, NEW, TOKENS)
        engine.forget(tokens, NEW)
        reloaded = engine.run(tokens, NEW, TOKENS)
        found["hit"][place], found["reloaded"][place] = answer(gpu_hit), answer(reloaded)
        found["cached before"][place + " again"] = reloaded.num_cached_tokens
    tiered.close()
    return found


def fresh(checkpoint: str, steps: list[float]) -> dict[str, Answer]:
    """What an engine without a tier says that has never had other weights, to each prompt once."""
    engine = SteppedEngine(start_llm(Path(checkpoint), None), None)
    for step in steps:
        engine.shift_weights(step)
    return {place: answer(engine.run(tokens, salt("fresh"), TOKENS)) for place, tokens in PLACES.items()}


@pytest.fixture(scope="module")
def oracle(tiny_checkpoint: Path) -> dict[str, dict[str, Answer]]:
    return {
        "old": in_child(fresh, str(tiny_checkpoint), []),
        "new": in_child(fresh, str(tiny_checkpoint), [STEP]),
    }


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: str(backend.value))
def updated(request: pytest.FixtureRequest, tiny_checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = in_child(update, request.param, str(tiny_checkpoint))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: str(backend.value))
def test_reload_equals_a_gpu_hit_to_the_last_bit(backend: Backend, dtype: str, tiny_checkpoint: Path) -> None:
    found = in_child(reloads, backend, str(tiny_checkpoint), dtype)
    assert {case: cached for case, (_, _, *cached) in found.items()} == {
        "whole": [4 * CHUNK, 4 * CHUNK],
        # The last token is computed in any case, for its logits; the backends count it differently.
        "up to the last token": [3 * CHUNK - (backend is Backend.LMCACHE)] * 2,
        "two chunks on the GPU, three in the tier": [5 * CHUNK, 5 * CHUNK],
        "generated tokens": [2 * CHUNK, 2 * CHUNK],
    }
    for case, (gpu_hit, reloaded, *_) in found.items():
        assert reloaded == gpu_hit, case


@pytest.mark.parametrize("place", PLACES)
def test_after_an_update_a_cached_prefix_is_answered_as_by_a_fresh_engine(
    place: str, updated: dict[str, Any], oracle: dict[str, dict[str, Answer]]
) -> None:
    if place != "in flight":
        assert updated["cached before"][place] == 3 * CHUNK, "the old version's KV was there to be hit"
        assert updated["before"][place] == oracle["old"][place]
    assert oracle["old"][place] != oracle["new"][place]
    assert updated["cached"][place] == 0
    assert updated["after"][place] == oracle["new"][place]


@pytest.mark.parametrize("place", PLACES)
def test_after_an_update_the_new_version_is_cached_and_reloaded(place: str, updated: dict[str, Any]) -> None:
    assert updated["cached before"][place + " again"] == len(PLACES[place]) // CHUNK * CHUNK
    assert updated["reloaded"][place] == updated["hit"][place]


def test_the_store_in_flight_landed_after_the_update(updated: dict[str, Any]) -> None:
    assert (updated["landed before"], updated["landed after"]) == (0, 2)
