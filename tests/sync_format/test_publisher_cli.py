"""`rollout-publish` as a user runs it: results on standard output, one-line errors, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from format_writer import delta_files
from safetensors.numpy import save_file

from sync.publish_cli import main


@pytest.fixture
def checkpoints(tmp_path):
    """Three steps of one policy as checkpoint directories; 5 elements change from each to the next."""
    rng = np.random.default_rng(0)
    weights = {"a": rng.standard_normal((40, 50)).astype(np.float32), "b": np.ones(7, np.float16)}
    directories = []
    for step in range(3):
        directory = tmp_path / f"step-{step}"
        directory.mkdir()
        save_file(weights, directory / "model.safetensors")
        (directory / "config.json").write_text("{}")
        directories.append(str(directory))
        weights["a"].reshape(-1)[step * 10 : step * 10 + 5] += 1
    return directories


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_run_from_anchor_to_verified_deltas(place, checkpoints, capsys):
    url = place.store.url
    assert run(capsys, "anchor", url, checkpoints[0])[0] == 0
    code, out, _ = run(capsys, "delta", url, checkpoints[0], checkpoints[1])
    assert code == 0
    assert "version 1: delta against version 0, 5 of 2007 elements changed (0.249%)" in out
    code, out, _ = run(
        capsys,
        "delta",
        url,
        checkpoints[1],
        checkpoints[2],
        "--encoding",
        "overwrite",
        "--checksum",
        "blake3",
        "--json",
    )
    assert code == 0
    published = json.loads(out)
    assert (published["version"], published["changed_elements"]) == (2, 5)

    code, out, _ = run(capsys, "show", url, "--json")
    chain = json.loads(out)
    assert [(entry["version"], entry["kind"], entry["encoding"]) for entry in chain] == [
        (0, "anchor", None),
        (1, "delta", "xor"),
        (2, "delta", "overwrite"),
    ]
    assert chain[1]["density"] == pytest.approx(5 / 2007)
    code, out, _ = run(capsys, "show", url)
    assert code == 0
    assert "0.249%" in out

    for version, verified in (("0", 2), ("1", 0), ("2", 0)):
        code, out, _ = run(capsys, "verify", url, version, "--json")
        assert (code, json.loads(out)["checksums_verified"]) == (0, verified)
    for version, parent in (("1", checkpoints[0]), ("2", checkpoints[1])):
        code, out, _ = run(capsys, "verify", url, version, "--parent", parent)
        assert code == 0
        assert "1 checksums of new bytes verified: good" in out


def test_verify_reads_versions_of_public_trainers(place, capsys):
    changes = {"a": (bytes(100), bytes(range(100))), "b": (bytes(50), bytes([9]) * 50)}
    place.put_all(delta_files(1, 0, changes, file_count=2))
    place.put_all(delta_files(2, 1, changes, encoding="overwrite"))
    for version in ("1", "2"):
        code, out, _ = run(capsys, "verify", place.store.url, version, "--json")
        assert code == 0
        assert json.loads(out)["tensors"] == 2


def failure(capsys, *arguments: str) -> str:
    code, out, err = run(capsys, *arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("rollout-publish: ")
    assert err.count("\n") == 1
    return err


def test_verify_names_what_is_wrong(place, checkpoints, capsys):
    url = place.store.url
    run(capsys, "anchor", url, checkpoints[0])
    run(capsys, "delta", url, checkpoints[0], checkpoints[1])
    told = failure(capsys, "verify", url, "1", "--parent", checkpoints[2])
    assert "version 1" in told
    assert "tensor a" in told
    assert "the delta was made against" in told
    key = "weight_v000001/model-00000-of-00001.safetensors"
    content = bytearray(place.raw.get(key))
    content[-1] ^= 1
    place.raw.put(key, bytes(content))
    assert "xxh3-64" in failure(capsys, "verify", url)


def test_wrong_checksum_of_new_bytes_is_found_with_the_parent(local_place, tmp_path, capsys):
    local_place.put_all(delta_files(1, 0, {"a": (bytes(16), bytes([3]) * 16)}))
    (tmp_path / "parent").mkdir()
    save_file({"a": np.ones(16, np.uint8)}, tmp_path / "parent" / "model.safetensors")
    told = failure(capsys, "verify", local_place.store.url, "1", "--parent", str(tmp_path / "parent"))
    assert "tensor a" in told
    assert "published was" in told


def test_bad_input_is_one_line_and_nothing_is_published(tmp_path, checkpoints, capsys):
    url = str(tmp_path / "store")
    assert "nothing is published" in failure(capsys, "show", url)
    assert "not a directory" in failure(capsys, "anchor", url, str(tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    assert "no *.safetensors" in failure(capsys, "anchor", url, str(tmp_path / "empty"))
    assert "unknown policy store scheme" in failure(capsys, "show", "ftp://x/y")
    run(capsys, "anchor", url, checkpoints[0])
    assert "are not the ones published" in failure(capsys, "delta", url, checkpoints[1], checkpoints[2])
    assert "is an anchor" in failure(capsys, "verify", url, "0", "--parent", checkpoints[0])
    assert "no index" in failure(capsys, "verify", url, "5")
    assert json.loads(run(capsys, "show", url, "--json")[1])[-1]["version"] == 0


def test_help_teaches_by_example(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "rollout-publish delta  /srv/policies" in shown
    assert "AWS_ENDPOINT_URL" in shown


@pytest.mark.parametrize(
    "arguments",
    [[], ["anchor"], ["delta", "s", "a", "b", "--encoding", "x"], ["show", "s", "-1"], ["verify", "s", "x"]],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: rollout-publish" in capsys.readouterr().err


def test_ctrl_c_ends_cleanly_and_leaves_no_version(tmp_path):
    """A real process, interrupted in the middle of its work."""
    big = tmp_path / "big"
    big.mkdir()
    rng = np.random.default_rng(0)
    weights = {f"t{number}": rng.standard_normal(12_500) for number in range(800)}
    save_file(weights, big / "model.safetensors")
    store = tmp_path / "store"
    command = [sys.executable, "-m", "sync.publish_cli", "anchor", str(store), str(big), "--shard-mib", "1"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "80"},
        # As a terminal would start it: a shell's background jobs ignore interrupts, and these tests may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not list(store.glob("weight_v000000/*.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.decode().startswith("rollout-publish: interrupted")
    assert "Traceback" not in err.decode()
    assert not (store / "latest").exists()
    assert not list(store.glob("weight_v000000/*.json"))
    assert not list(store.glob("weight_v000000/.*.tmp"))
