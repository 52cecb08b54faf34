"""The second backend: vLLM's offloading with our worker for CPU engines, held to the same rules.

An engine of its own in a process of its own: the connector of the other tests is global to theirs.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def found(tiny_checkpoint: Path) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(scenario, (str(tiny_checkpoint),))


def scenario(checkpoint: str) -> dict[str, Any]:
    """Runs in the child; everything that is compared goes back as plain data."""
    import threading

    from conftest import SteppedEngine, answer, cold, prompt, salt, start_llm

    from kvtier.namespace import Namespace
    from kvtier.wiring import native_transfer_config

    engine = SteppedEngine(start_llm(Path(checkpoint), native_transfer_config(64 << 20)), None)
    found: dict[str, Any] = {}
    old, new = Namespace(0).name, Namespace(1).name

    tokens = prompt(4, seed=50)
    engine.run(tokens, salt(old), 4)
    gpu_hit = engine.run(tokens, salt(old), 4)
    engine.forget(tokens, salt(old))
    reloaded = engine.run(tokens, salt(old), 4)
    found["reload"] = answer(reloaded) == answer(gpu_hit), reloaded.num_cached_tokens
    engine.forget(tokens, salt(old))
    found["other caller"] = engine.run(tokens, salt(old, "bob")).num_cached_tokens

    # A store that is in flight when the update begins and lands after it.
    worker = engine.worker_connector.connector_worker.worker
    gate = threading.Event()
    late = prompt(2, seed=51)
    worker._thread.submit(gate.wait)
    engine.add(late, salt(old))
    while not any(not job.done() for job in worker._jobs.values()):
        engine.step()
    # A request admitted before, and one whose load is in flight.
    engine.forget(tokens, salt(old))
    engine.add(tokens, salt(old), 2)
    while engine.worker_connector.transfers_in_flight()["loads"] == 0:
        engine.step()
    waiting = prompt(3, seed=52)
    waiting_id = engine.add(waiting, salt(old), 2)
    report = engine.enter(new)
    engine.shift_weights(0.05)
    found["moved"] = len(report.moved), report.cancelled_loads, waiting_id in report.moved
    gate.set()
    engine.drain()
    outputs = {len(output.prompt_token_ids): output for output in engine.finished.values()}
    found["load given back"] = answer(outputs[len(tokens)]), cold(engine, tokens, 2)
    found["admitted before"] = answer(outputs[len(waiting)]), cold(engine, waiting, 2)
    engine.core.reset_prefix_cache()
    after = engine.run(late, salt(new))
    found["late store"] = answer(after), cold(engine, late), after.num_cached_tokens
    engine.core.reset_prefix_cache()
    reloaded = engine.run(tokens, salt(new), 2)
    found["new namespace"] = reloaded.num_cached_tokens, answer(reloaded), cold(engine, tokens, 2)
    found["usage"] = engine.connector.usage()
    return found


def test_reload_equals_gpu_hit_to_the_last_bit(found: dict[str, Any]) -> None:
    assert found["reload"] == (True, 512)


def test_callers_never_hit_across(found: dict[str, Any]) -> None:
    assert found["other caller"] == 0


def test_waiting_requests_move_and_a_load_in_flight_is_given_back(found: dict[str, Any]) -> None:
    from conftest import assert_agree

    assert found["moved"] == (2, 1, True)
    assert_agree(*found["load given back"])
    assert_agree(*found["admitted before"])


def test_store_that_lands_after_the_update_is_out_of_reach(found: dict[str, Any]) -> None:
    from conftest import assert_agree

    answer, expected, cached = found["late store"]
    assert cached == 0
    assert_agree(answer, expected)


def test_new_namespace_is_stored_and_reloaded(found: dict[str, Any]) -> None:
    from conftest import assert_agree

    cached, answer, expected = found["new namespace"]
    assert cached == 512
    assert_agree(answer, expected)
    assert 0 < found["usage"]["entries"] <= found["usage"]["capacity_entries"]
