"""What comes back from the host tier is what the GPU-side cache would have answered, and only to its own namespace."""

from __future__ import annotations

import pytest
from conftest import SteppedEngine, answer, prompt, salt

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
