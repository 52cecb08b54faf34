"""The real demo trainer, the real model, and the only oracle for serving: a fresh engine on the target checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import run_on_replica, start_engine
from independent_trainer import read_checkpoint

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

VERSIONS = 3
PROMPTS = [[1, 4093, 198], list(range(100, 400, 7)), [5345, 338, 253, 2300]]


def test_after_real_deltas_memory_and_answers_equal_a_fresh_engine(tmp_path: Path) -> None:
    from runtime.demo.convert import ensure_demo_model

    model = ensure_demo_model()
    trainer = [sys.executable, "-m", "runtime.demo.trainer", "--store", str(tmp_path / "store"), "--model", str(model)]
    subprocess.run(
        [*trainer, "--versions", str(VERSIONS), "--keep-checkpoints", str(tmp_path / "kept")], check=True, timeout=300
    )
    trained = tmp_path / "kept" / f"weight_v{VERSIONS:06d}"

    async def body(replica: Any) -> Any:
        for version in range(1, VERSIONS + 1):
            await replica.coordinator.sync(version)
        held, expected = replica.engine.checkpoint_bytes(), read_checkpoint(trained)[0]
        assert held.keys() == expected.keys()
        for name, data in expected.items():
            assert np.array_equal(held[name], data), name
        assert any(not np.array_equal(data, replica.weights[name]) for name, data in expected.items())
        return greedy(replica.engine.llm)

    engines = start_engine(model)
    synced = run_on_replica(next(engines), body, tmp_path / "store")
    next(engines, None)
    fresh_engines = start_engine(trained)
    fresh = greedy(next(fresh_engines).llm)
    next(fresh_engines, None)
    assert synced == fresh


def greedy(llm: Any) -> list[tuple[list[int], list[dict[int, float]]]]:
    """Greedy tokens and the top log-probabilities of each, prompt by prompt."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=16, logprobs=5, ignore_eos=True, detokenize=False)
    answers = []
    for prompt in PROMPTS:
        output = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0].outputs[0]
        steps = [{token: value.logprob for token, value in step.items()} for step in output.logprobs]
        answers.append((list(output.token_ids), steps))
    return answers
