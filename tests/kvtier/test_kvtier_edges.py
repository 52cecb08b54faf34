"""Policy changes against requests in every state, with each order made to happen. The oracle is a cold run."""

from __future__ import annotations

import signal

import pytest
from conftest import CHUNK, ServerThread, SteppedEngine, answer, assert_agree, cold, prompt, salt
from vllm.v1.request import RequestStatus

from kvtier.namespace import OnUpdate

pytestmark = pytest.mark.engine
Namespaces = tuple[str, str]


def test_local_hit_of_the_old_policy_is_not_reused(engine: SteppedEngine, namespaces: Namespaces) -> None:
    old, new = namespaces
    tokens = prompt(3, seed=1)
    before = engine.run(tokens, salt(old), 3)
    assert engine.run(tokens, salt(old), 3).num_cached_tokens == 3 * CHUNK
    engine.enter(new)
    engine.shift_weights(0.05)
    after = engine.run(tokens, salt(new), 3)
    assert after.num_cached_tokens == 0
    assert answer(after) == cold(engine, tokens, 3) != answer(before)


def test_host_hit_of_the_old_policy_is_not_reused(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    old, new = namespaces
    tokens = prompt(3, seed=2)
    before = engine.run(tokens, salt(old), 3)
    assert host.entries(old) == 3
    engine.forget(tokens, salt(old))
    engine.enter(new)
    engine.shift_weights(0.05)
    after = engine.run(tokens, salt(new), 3)
    assert after.num_cached_tokens == 0
    assert answer(after) == cold(engine, tokens, 3) != answer(before)


def test_store_that_lands_after_the_update_is_out_of_reach(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    old, new = namespaces
    tokens = prompt(2, seed=3)
    engine.signal_host_at_store(signal.SIGSTOP)
    engine.add(tokens, salt(old))
    engine.step_until(lambda: engine.worker_connector.transfers_in_flight()["stores"] == 1)
    engine.enter(new)
    engine.shift_weights(0.05)
    host.signal(signal.SIGCONT)
    engine.drain()
    assert (host.entries(old), host.entries(new)) == (2, 0)
    engine.forget(tokens, salt(old))
    after = engine.run(tokens, salt(new))
    assert after.num_cached_tokens == 0
    assert answer(after) == cold(engine, tokens)


def test_admitted_before_and_scheduled_after_starts_in_the_new_namespace(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    old, new = namespaces
    tokens = prompt(3, seed=4)
    engine.run(tokens, salt(old, "caller"))
    request_id = engine.add(tokens, salt(old, "caller"), 2)
    report = engine.enter(new)
    engine.shift_weights(0.05)
    assert report.moved == [request_id]
    assert engine.request(request_id).cache_salt == salt(new, "caller")
    engine.drain()
    (output,) = engine.finished.values()
    assert output.num_cached_tokens == 0
    assert answer(output) == cold(engine, tokens, 2)
    # What it computed belongs to the new policy, in both tiers.
    assert host.entries(new) == 3
    engine.forget(tokens, salt(new, "caller"))
    assert engine.run(tokens, salt(new, "caller"), 2).num_cached_tokens == 3 * CHUNK


def test_lookup_under_way_is_forgotten(engine: SteppedEngine, host: ServerThread, namespaces: Namespaces) -> None:
    old, new = namespaces
    tokens = prompt(3, seed=5)
    engine.run(tokens, salt(old))
    engine.forget(tokens, salt(old))
    host.signal(signal.SIGSTOP)
    request_id = engine.add(tokens, salt(old))
    engine.step_until(lambda: request_id in engine.connector.scheduler_adapter._unacked_lookups)
    report = engine.enter(new)
    engine.shift_weights(0.05)
    host.signal(signal.SIGCONT)
    assert report.moved == [request_id]
    engine.drain()
    (output,) = engine.finished.values()
    assert output.num_cached_tokens == 0
    assert answer(output) == cold(engine, tokens)
    assert host.entries(new) == 3


def test_load_in_flight_is_given_back_and_computed_anew(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    old, new = namespaces
    tokens = prompt(3, seed=6)
    engine.run(tokens, salt(old))
    engine.forget(tokens, salt(old))
    engine.signal_host_at_load(signal.SIGSTOP)
    request_id = engine.add(tokens, salt(old), 2)
    engine.step_until(lambda: engine.worker_connector.transfers_in_flight()["loads"] == 1)
    assert engine.request(request_id).status is RequestStatus.WAITING_FOR_REMOTE_KVS
    report = engine.enter(new)
    engine.shift_weights(0.05)
    host.signal(signal.SIGCONT)
    assert (report.moved, report.cancelled_loads) == ([request_id], 1)
    engine.drain()
    (output,) = engine.finished.values()
    expected = cold(engine, tokens, 2)
    assert answer(output) == expected
    # Neither tier kept the loaded blocks under the new name.
    gpu_hit = engine.run(tokens, salt(new), 2)
    assert_agree(answer(gpu_hit), expected)
    engine.forget(tokens, salt(new))
    reloaded = engine.run(tokens, salt(new), 2)
    assert reloaded.num_cached_tokens == 3 * CHUNK
    assert answer(reloaded) == answer(gpu_hit)


def test_loaded_but_not_yet_run_is_given_back(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    old, new = namespaces
    tokens = prompt(3, seed=7)
    engine.run(tokens, salt(old))
    engine.forget(tokens, salt(old))
    request_id = engine.add(tokens, salt(old), 2)
    engine.step_until(lambda: request_id in engine.scheduler.finished_recving_kv_req_ids)
    report = engine.enter(new)
    engine.shift_weights(0.05)
    assert (report.moved, report.cancelled_loads) == ([request_id], 1)
    engine.drain()
    (output,) = engine.finished.values()
    assert answer(output) == cold(engine, tokens, 2)
    assert_agree(answer(engine.run(tokens, salt(new), 2)), answer(output))


def test_preempted_across_a_commit_meets_its_own_namespace_only(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    old, new = namespaces
    tokens = prompt(3, seed=8)
    request_id = engine.add(tokens, salt(old), 6)
    preempt_after_a_token(engine, request_id)
    report = engine.enter(new)
    engine.shift_weights(0.05)
    assert report.moved == []
    # Somebody fills the new namespace with the same prompt while it waits at the back of the queue.
    expected = answer(engine.run_beside(tokens, salt(new), 2))
    assert_agree(expected, cold(engine, tokens, 2))
    engine.drain()
    (straddler,) = engine.finished.values()
    assert len(straddler.outputs[0].token_ids) == 6
    # It has not left anything in the new namespace, in neither tier.
    assert_agree(answer(engine.run(tokens, salt(new), 2)), expected)
    engine.forget(tokens, salt(new))
    assert_agree(answer(engine.run(tokens, salt(new), 2)), expected)


def test_blocks_filled_after_the_commit_stay_out_of_reach(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    old, new = namespaces
    tokens = prompt(1, seed=9, tail=CHUNK - 3)
    request_id = engine.add(tokens, salt(old), 8)
    engine.step_until(lambda: engine.request(request_id).num_output_tokens >= 1)
    report = engine.enter(new)
    engine.shift_weights(0.05)
    assert report.moved == []
    engine.drain()
    (straddler,) = engine.finished.values()
    whole = tokens + list(straddler.outputs[0].token_ids)
    # Its second block mixes both policies: it was stored, under the old name only.
    assert (host.entries(old), host.entries(new)) == (2, 0)
    after = engine.run(whole, salt(new))
    assert after.num_cached_tokens == 0
    assert answer(after) == cold(engine, whole)


def test_recompute_prefills_running_requests_under_the_new_weights(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    old, new = namespaces
    tokens = prompt(2, seed=10)
    request_id = engine.add(tokens, salt(old), 6)
    engine.step_until(lambda: engine.request(request_id).num_output_tokens >= 2)
    report = engine.enter(new, OnUpdate.RECOMPUTE)
    before = list(engine.request(request_id).output_token_ids)
    engine.shift_weights(0.05)
    assert (report.preempted, report.moved) == (1, [])
    engine.drain()
    (output,) = engine.finished.values()
    tokens_after, logprobs_after = cold(engine, tokens + before, 6 - len(before))
    tokens_found, logprobs_found = answer(output)
    assert tokens_found[: len(before)] == before
    assert_agree((tokens_found[len(before) :], logprobs_found[len(before) :]), (tokens_after, logprobs_after))
    # So its KV is as good as anybody's.
    reused = engine.run(tokens, salt(new), 2)
    assert reused.num_cached_tokens == 2 * CHUNK
    assert_agree(answer(reused), cold(engine, tokens, 2))


def test_same_prefix_under_two_caller_salts_never_hits_across(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    tokens = prompt(3, seed=11)
    engine.run(tokens, salt(namespaces[0], "alice"))
    assert engine.run(tokens, salt(namespaces[0], "bob")).num_cached_tokens == 0
    engine.forget(tokens, salt(namespaces[0], "alice"))
    engine.forget(tokens, salt(namespaces[0], "bob"))
    assert engine.run(tokens, salt(namespaces[0], "carol")).num_cached_tokens == 0
    assert engine.run(tokens, salt(namespaces[0])).num_cached_tokens == 0
    assert engine.run(tokens, salt(namespaces[0], "alice")).num_cached_tokens == 3 * CHUNK


def test_store_that_a_preemption_overtakes_is_not_overwritten(
    engine: SteppedEngine, host: ServerThread, namespaces: Namespaces
) -> None:
    old, _ = namespaces
    # Together they fill the pool of 23 blocks; the first needs one more after some steps, which the second gives up.
    first, second = prompt(10, seed=12, tail=20), prompt(11, seed=13)
    first_id = engine.add(first, salt(old), 130)
    engine.step_until(lambda: engine.request(first_id).num_output_tokens >= 1)
    engine.step_until(lambda: engine.worker_connector.transfers_in_flight()["stores"] == 0)
    engine.signal_host_at_store(signal.SIGSTOP)
    second_id = engine.add(second, salt(old), 120)
    after_forward = engine.watch_stores_after_forward()
    engine.resume_host_after_preemption(1.0)
    engine.step_until(lambda: engine.request(second_id).num_preemptions == 1)
    assert after_forward[-2] == 1
    assert after_forward[-1] == 0, "the forward ran while the server was still reading the blocks"
    engine.drain()
    engine.core.reset_prefix_cache()
    reloaded = engine.run(second, salt(old))
    assert reloaded.num_cached_tokens == 11 * CHUNK
    assert_agree(answer(reloaded), cold(engine, second))


def preempt_after_a_token(engine: SteppedEngine, request_id: str) -> None:
    engine.step_until(lambda: engine.request(request_id).num_output_tokens >= 1)
    engine.preempt(request_id)
