"""What comes back from the host tier is what the GPU-side cache would have answered, and only to its own namespace."""

from __future__ import annotations

import signal
import time

import pytest
from conftest import ServerThread, SteppedEngine, answer, prompt, salt
from vllm.v1.request import RequestStatus

pytestmark = pytest.mark.engine


def test_reload_equals_gpu_hit_to_the_last_bit(engine: SteppedEngine, namespaces: tuple[str, str]) -> None:
    tokens, own = prompt(4), salt(namespaces[0])
    engine.run(tokens, own, 4)
    gpu_hit = engine.run(tokens, own, 4)
    assert engine.forget(tokens, own) == 4
    reloaded = engine.run(tokens, own, 4)
    assert gpu_hit.num_cached_tokens == 4 * 128
    assert reloaded.num_cached_tokens == 4 * 128
    assert answer(reloaded) == answer(gpu_hit)


def test_a_lookup_costs_one_step(engine: SteppedEngine, host: ServerThread, namespaces: tuple[str, str]) -> None:
    """Both of its messages are answered during one step, however long the server takes to the first."""
    host.signal(signal.SIGSTOP)
    request_id = engine.add(prompt(2), salt(namespaces[0]), 2)
    engine.step()
    host.signal(signal.SIGCONT)
    deadline = time.monotonic() + 30
    while not engine.lookup_is_answered(request_id):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    engine.step()
    assert engine.request(request_id).status is RequestStatus.RUNNING
