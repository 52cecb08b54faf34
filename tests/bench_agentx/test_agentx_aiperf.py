"""aiperf and this client on one conversation file and one server. Reported; only counts are asserted.

Needs aiperf, which pins other versions than vLLM: install it apart and set AGENTX_AIPERF to its executable.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bench_agentx.child_server import free_port
from bench_agentx.main import main

SESSIONS, TURNS, OUTPUT_TOKENS = 8, 3, 40
TTFT_S, ITL_S = 0.15, 0.02


@pytest.fixture
def aiperf() -> str:
    path = shutil.which(os.environ.get("AGENTX_AIPERF", "aiperf"))
    if path is None:
        pytest.skip("no aiperf (set AGENTX_AIPERF to its executable)")
    return path


@pytest.mark.slow
def test_aiperf_measures_the_same(
    aiperf: str, word_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = [[f" ab cd ef gh {'ij ' * (session + turn)}" for turn in range(TURNS)] for session in range(SESSIONS)]
    conversations = [
        {"id": str(number), "messages": [message for text in texts for message in _exchange(text)]}
        for number, texts in enumerate(users)
    ]
    (tmp_path / "conversations.json").write_text(json.dumps(conversations))
    (tmp_path / "aiperf.jsonl").write_text(
        "\n".join(
            json.dumps({"session_id": str(number), "turns": [{"text": text} for text in texts]})
            for number, texts in enumerate(users)
        )
    )
    port = free_port()
    stub = [sys.executable, str(Path(__file__).parent / "agentx_stub_server.py"), "stub", "--kv-tier", "off"]
    stub += ["--port", str(port), "--ttft-s", str(TTFT_S), "--itl-s", str(ITL_S)]
    with subprocess.Popen(stub, stdout=subprocess.DEVNULL) as server:
        try:
            ours = _ours(port, word_tokenizer, tmp_path, capsys)
            theirs = _theirs(aiperf, port, word_tokenizer, tmp_path)
        finally:
            server.terminate()
    with capsys.disabled():
        for name, (mine, other) in _common(ours, theirs).items():
            print(f"\n{name}: ours {mine:.2f}, aiperf {other:.2f}, {mine / other - 1:+.2%}", end="")
    assert ours["request_count"] == theirs["request_count"]["avg"] == SESSIONS * TURNS
    assert ours["output_sequence_length"]["min"] == theirs["output_sequence_length"]["min"] == OUTPUT_TOKENS


def _exchange(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": " op" * OUTPUT_TOKENS}]


def _ours(port: int, tokenizer: Path, directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    arguments = ["run", "--url", f"http://127.0.0.1:{port}", "--trace", str(directory / "conversations.json")]
    arguments += ["--tokenizer", str(tokenizer), "--concurrency", "4", "--max-sessions", str(SESSIONS)]
    arguments += ["--start-ratio", "0", "0", "--order", "sequential", "--no-cache-bust", "--json"]
    _wait_until_ready(port)
    assert main([*arguments, "--out", str(directory / "ours")]) == 0
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)[0]
    return summary


def _wait_until_ready(port: int) -> None:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError("the stub did not start")


def _theirs(aiperf: str, port: int, tokenizer: Path, directory: Path) -> dict[str, Any]:
    command = [aiperf, "profile", "--model", "stub", "--url", f"http://127.0.0.1:{port}", "--endpoint-type", "chat"]
    command += ["--streaming", "--input-file", str(directory / "aiperf.jsonl"), "--custom-dataset-type", "multi_turn"]
    command += ["--concurrency", "4", "--num-sessions", str(SESSIONS), "--tokenizer", str(tokenizer)]
    command += ["--use-server-token-count", "--extra-inputs", f"max_tokens:{OUTPUT_TOKENS}"]
    command += ["--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", str(directory / "aiperf")]
    subprocess.run(command, check=True, capture_output=True, timeout=170)
    exported: dict[str, Any] = json.loads((directory / "aiperf" / "profile_export_aiperf.json").read_text())
    return exported


def _common(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {
        "time_to_first_token p50": (ours["time_to_first_token_ms"]["p50"], theirs["time_to_first_token"]["p50"]),
        "inter_token_latency p50": (ours["inter_token_latency_ms"]["p50"], theirs["inter_token_latency"]["p50"]),
        "output_token_throughput": (ours["output_token_throughput"], theirs["output_token_throughput"]["avg"]),
    }
