"""What is measured: a checkpoint and a store with a chain of deltas on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sync.checkpoint import CheckpointDirectory
from sync.publisher import Publisher
from sync.synthetic import perturb, qwen3_2gb

DENSE_DENSITY = 0.001


@dataclass(frozen=True)
class Case:
    """`prepare(directory, versions)` returns the checkpoint and writes deltas 1 to `versions` to `directory/store`."""

    name: str
    what: str
    prepare: Callable[[Path, int], Path]


def _smollm2(learning_rate: str) -> Callable[[Path, int], Path]:
    def prepare(directory: Path, versions: int) -> Path:
        # The demo belongs to the runtime, which depends on this package: its programs are run, not imported.
        converted = subprocess.run([sys.executable, "-m", "runtime.demo.convert"], check=True, capture_output=True)
        model = converted.stdout.decode().splitlines()[-1]
        trainer = [sys.executable, "-m", "runtime.demo.trainer", "--store", str(directory / "store"), "--model", model]
        subprocess.run(
            [*trainer, "--versions", str(versions), "--learning-rate", learning_rate], check=True, capture_output=True
        )
        return Path(model)

    return prepare


def _dense_2gb(directory: Path, versions: int) -> Path:
    model = directory / "model"
    qwen3_2gb(model)
    weights = {name: tensor.clone() for name, tensor in CheckpointDirectory(model)}
    publisher = Publisher(str(directory / "store"), progress=False)
    publisher.publish_anchor(weights, version=0)
    for version in range(1, versions + 1):
        weights = perturb(weights, DENSE_DENSITY, version)
        publisher.publish_delta(weights)
    return model


CASES = (
    Case("smollm2_real", "SmolLM2-135M, real fine-tuning, two AdamW steps at lr 1e-6", _smollm2("1e-6")),
    Case("smollm2_real_1e5", "the same at lr 1e-5", _smollm2("1e-5")),
    Case("dense_2gb", "random Qwen3-shaped bf16 model of 2 GB, 0.1% changed", _dense_2gb),
)
