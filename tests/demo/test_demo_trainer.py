"""The demo trainer as a process: what it publishes, how it stops, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import zstandard
from safetensors import safe_open
from safetensors.torch import load_file

from runtime.demo.corpus import docstrings, token_windows
from runtime.demo.finetune import FineTuner
from sync.synthetic import small_tied, small_untied

TRAINER = [sys.executable, "-m", "runtime.demo.trainer", "--json"]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_untied(tmp_path_factory.mktemp("model") / "small").directory


class Run(NamedTuple):
    """A finished run of three versions, shared by tests that leave it as it is."""

    store: Path
    kept: Path
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Run:
    folder = tmp_path_factory.mktemp("run")
    options = ["--versions", "3", "--learning-rate", "1e-5", "--keep-checkpoints", str(folder / "kept")]
    code, events, err = finish(launch(folder / "store", small_model, *options))
    assert code == 0, err
    return Run(folder / "store", folder / "kept", events)


@pytest.fixture
def start(tmp_path: Path, small_model: Path) -> Iterator[Start]:
    """Starts a trainer on ``tmp_path/store``; whatever still runs at the end is killed."""
    processes: list[subprocess.Popen[str]] = []

    def run(*options: str, model: Path = small_model, store: Path = tmp_path / "store") -> subprocess.Popen[str]:
        processes.append(launch(store, model, *options))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def launch(store: Path, model: Path, *options: str) -> subprocess.Popen[str]:
    command = [*TRAINER, "--store", str(store), "--model", str(model), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def events_until(process: subprocess.Popen[str], wanted: str, count: int = 1) -> list[dict[str, Any]]:
    """Reads reports up to the ``count``-th ``wanted`` one."""
    assert process.stdout is not None
    events: list[dict[str, Any]] = []
    for line in process.stdout:
        events.append(json.loads(line))
        if sum(event["event"] == wanted for event in events) == count:
            return events
    raise AssertionError(f"no {wanted!r} before the end: {events}, {process.communicate()[1]}")


def finish(process: subprocess.Popen[str], timeout_s: float = 120) -> tuple[int, list[dict[str, Any]], str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def tensor_bytes(checkpoint: Path) -> dict[str, bytes]:
    tensors = {n: t for file in checkpoint.glob("*.safetensors") for n, t in load_file(file).items()}
    return {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}


def applied(parent: dict[str, bytes], version: Path) -> dict[str, bytes]:
    """The delta in ``version`` applied to ``parent`` by libzstd and big integers; checks its Adler-32s."""
    index = json.loads((version / "model.safetensors.index.json").read_text())
    assert index["metadata"]["delta_encoding"] == "xor"
    assert index["metadata"]["checksum_format"] == "adler32"
    new = dict(parent)
    for name, file in index["weight_map"].items():
        with safe_open(version / file, framework="pt") as shard:
            payload, checksum = shard.get_tensor(name).numpy().tobytes(), shard.metadata()[name]
        reader = zstandard.ZstdDecompressor().stream_reader(payload, read_across_frames=True)
        mask = reader.read()
        assert len(mask) == len(parent[name])
        xor = int.from_bytes(parent[name], "little") ^ int.from_bytes(mask, "little")
        new[name] = xor.to_bytes(len(mask), "little")
        assert f"{zlib.adler32(new[name]):08x}" == checksum
    return new


def changed_elements(old: dict[str, bytes], new: dict[str, bytes]) -> int:
    def bits(data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.int16)

    return sum(int((bits(old[name]) != bits(new[name])).sum()) for name in old)


def check_versions(store: Path, kept: Path, model: Path, versions: int) -> list[tuple[int, int]]:
    """Replays the chain independently; returns (changed, all) elements of each delta."""
    weights = tensor_bytes(store / "weight_v000000")
    assert weights == tensor_bytes(model) == tensor_bytes(kept / "weight_v000000")
    counts = []
    for version in range(1, versions + 1):
        old, weights = weights, applied(weights, store / f"weight_v{version:06d}")
        assert weights == tensor_bytes(kept / f"weight_v{version:06d}")
        counts.append((changed_elements(old, weights), sum(map(len, old.values())) // 2))
    assert (store / "latest").read_text().strip() == f"weight_v{versions:06d}"
    return counts


def test_published_deltas_decode_to_the_kept_checkpoints(finished_run: Run, small_model: Path) -> None:
    store, kept, events = finished_run
    counts = check_versions(store, kept, small_model, 3)
    published = [event for event in events if event["event"] == "published"]
    assert [event["version"] for event in published] == [0, 1, 2, 3]
    for (changed, total), event in zip(counts, published[1:], strict=True):
        assert (event["changed_elements"], event["total_elements"]) == (changed, total)
        assert event["density"] == changed / total
        assert 0 < changed < total
        assert event["base_version"] == event["version"] - 1
        files = (store / f"weight_v{event['version']:06d}").glob("*.safetensors")
        assert 0 < event["payload_bytes"] <= sum(file.stat().st_size for file in files)


def test_reports_come_in_order(finished_run: Run) -> None:
    kinds = [event["event"] for event in finished_run.events]
    assert kinds == ["started", "published", *["step", "step", "published"] * 3, "stopped"]
    assert [event["step"] for event in finished_run.events if event["event"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert finished_run.events[-1] == {"event": "stopped", "reason": "all versions published", "versions": 3}


def test_a_kept_checkpoint_is_servable(finished_run: Run, small_model: Path) -> None:
    kept = finished_run.kept / "weight_v000001"
    assert {path.name for path in kept.iterdir()} == {path.name for path in small_model.iterdir()}
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, loading = AutoModelForCausalLM.from_pretrained(kept, output_loading_info=True)
    assert not any(loading.values()), loading
    AutoTokenizer.from_pretrained(kept)


@pytest.mark.parametrize(
    ("number", "event", "count"),
    [
        (signal.SIGINT, "started", 1),
        (signal.SIGINT, "step", 1),
        (signal.SIGINT, "step", 4),  # the last before a publication
        (signal.SIGTERM, "published", 3),
    ],
)
def test_a_signal_ends_it_cleanly_and_leaves_no_half_published_version(
    number: signal.Signals, event: str, count: int, start: Start, tmp_path: Path, small_model: Path
) -> None:
    kept = tmp_path / "kept"
    trainer = start("--learning-rate", "1e-4", "--keep-checkpoints", str(kept))
    seen = events_until(trainer, event, count)
    trainer.send_signal(number)
    trainer.send_signal(number)
    code, rest, err = finish(trainer, timeout_s=30)
    assert code == 0, err
    assert err == ""
    events = seen + rest
    published = [event["version"] for event in events if event["event"] == "published"]
    assert events[-1] == {"event": "stopped", "reason": number.name, "versions": max(0, len(published) - 1)}
    store = tmp_path / "store"
    directories = sorted(path.name for path in store.iterdir() if path.is_dir()) if store.exists() else []
    assert directories == [f"weight_v{version:06d}" for version in published]
    if published:
        check_versions(store, kept, small_model, len(published) - 1)


def test_a_reader_that_goes_away_ends_it(start: Start, tmp_path: Path) -> None:
    trainer = start()
    events_until(trainer, "published", 2)
    assert trainer.stdout is not None
    trainer.stdout.close()
    assert trainer.wait(timeout=30) == 0
    assert trainer.stderr is not None
    assert trainer.stderr.read() == ""


def test_it_stops_with_its_parent(tmp_path: Path, small_model: Path) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    command = [*TRAINER, "--stop-with-parent", "--store", str(store), "--model", str(small_model)]
    script = (
        "import pathlib, subprocess, sys, time\n"
        "log = pathlib.Path(sys.argv[1])\n"
        "child = subprocess.Popen(sys.argv[2:], stdout=log.open('w'))\n"
        "print(child.pid, flush=True)\n"
        "while 'published' not in log.read_text(): time.sleep(0.05)\n"
    )
    parent = subprocess.run([sys.executable, "-c", script, str(log), *command], capture_output=True, timeout=60)
    assert parent.returncode == 0, parent.stderr
    pid = int(parent.stdout)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and "stopped" not in log.read_text():
        time.sleep(0.05)
    last = json.loads(log.read_text().splitlines()[-1])
    if last["event"] != "stopped":
        os.kill(pid, signal.SIGKILL)
    assert last["event"] == "stopped"
    assert last["reason"] == "the parent process ended"


def test_the_interval_spaces_versions_out_and_a_signal_ends_the_wait(start: Start) -> None:
    trainer = start("--interval-s", "300")
    events_until(trainer, "published", 2)
    trainer.send_signal(signal.SIGTERM)
    code, rest, _ = finish(trainer, timeout_s=10)
    assert code == 0
    assert [event["event"] for event in rest] == ["stopped"]


def test_a_store_whose_latest_version_is_not_the_model_is_refused_and_left_alone(
    finished_run: Run, start: Start
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished_run.store.rglob("*")}
    code, events, err = finish(start("--versions", "1", store=finished_run.store))
    assert code == 1, err
    assert "version 3" in err, err
    assert "Traceback" not in err
    assert events[-1]["event"] == "failed"
    assert events[-1]["error"] in err
    assert {path: path.stat().st_mtime_ns for path in finished_run.store.rglob("*")} == before


def test_a_trainer_goes_on_from_a_kept_checkpoint_of_the_latest_version(
    finished_run: Run, start: Start, tmp_path: Path, small_model: Path
) -> None:
    store, kept = tmp_path / "store", tmp_path / "kept"
    shutil.copytree(finished_run.store, store)
    shutil.copytree(finished_run.kept, kept)
    options = ["--versions", "1", "--keep-checkpoints", str(kept)]
    code, events, err = finish(start(*options, model=kept / "weight_v000003", store=store))
    assert code == 0, err
    assert {"event": "resumed", "version": 3} in events
    check_versions(store, kept, small_model, 4)


def test_a_directory_without_a_checkpoint_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = finish(start(model=tmp_path / "empty"))
    assert code == 1, err
    assert "error: " in err
    assert str(tmp_path / "empty") in err
    assert "Traceback" not in err


def test_the_text_report_names_version_density_and_size(tmp_path: Path, small_model: Path) -> None:
    command = [*TRAINER[:-1], "--store", str(tmp_path), "--model", str(small_model), "--versions", "1"]
    options = ["--steps-per-version", "1", "--threads", "2"]
    result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=True)
    lines = result.stdout.splitlines()
    assert lines[1].startswith("version 0 published: anchor")
    assert lines[2].startswith("step 1: loss ")
    assert "% changed" in lines[3]
    assert lines[-1] == "stopped after 1 versions: all versions published"


def test_training_lowers_the_loss_and_weights_are_bf16_under_the_checkpoints_names(tmp_path: Path) -> None:
    model = small_tied(tmp_path / "model").directory
    tuner = FineTuner(model, learning_rate=1e-3)
    original = load_file(model / "model.safetensors")
    weights = tuner.weights()
    assert weights.keys() == original.keys()
    assert all(torch.equal(weights[name], original[name]) for name in original)
    losses = [tuner.step() for _ in range(30)]
    assert sum(losses[-5:]) < sum(losses[:5])
    assert tuner.steps_taken == 30
    assert all(tensor.dtype == torch.bfloat16 for tensor in tuner.weights().values())
    assert all(torch.equal(weights[name], original[name]) for name in original), "weights() is no copy"


def test_docstrings_come_from_sources_without_importing_them() -> None:
    texts = docstrings()
    assert any("demo's trainer process" in text for text in texts)
    assert all(text == text.strip() for text in texts)
    with pytest.raises(ValueError, match="no docstrings"):
        docstrings(packages=())


def test_windows_are_full_and_consecutive() -> None:
    assert token_windows(range(7), 3) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="at least 8 tokens of text, found 7"):
        token_windows(range(7), 8)


@pytest.mark.slow
def test_real_deltas_of_the_demo_model_are_sparse_and_exact(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the demo extra is not installed")
    from runtime.demo.convert import ensure_demo_model

    model = ensure_demo_model()
    trainer = start("--versions", "2", "--keep-checkpoints", str(tmp_path / "kept"), model=model)
    code, events, err = finish(trainer, timeout_s=200)
    assert code == 0, err
    for changed, total in check_versions(tmp_path / "store", tmp_path / "kept", model, 2):
        assert total == 134_515_008
        assert 0.0005 < changed / total < 0.05
    assert events[-1]["versions"] == 2
