"""The demo as a new user runs it: `make serve`, versions going live in the terminal, Ctrl-C, and nothing left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import uuid
from pathlib import Path

import openai
import psutil
import pytest
from serving import ROOT, free_port

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

START_TIMEOUT_S = 300
ROW = re.compile(r"^\s+(\d+)\s+<?\d+\.\d{3}\s+\d+\.\d{2}\s", re.MULTILINE)


def processes_marked(mark: str) -> list[psutil.Process]:
    """Everything that inherited our environment variable."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ROLLOUT_TEST_MARK") == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def shared_memory_of(processes: list[psutil.Process]) -> set[str]:
    """Paths of the shared-memory segments that the processes have mapped."""
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in processes if process.is_running()]
    return set(re.findall(r"/dev/shm/\S+", "\n".join(maps)))


def test_make_serve_shows_versions_going_live_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    port, mark = free_port(), uuid.uuid4().hex
    output = tmp_path / "terminal.txt"
    environment = {**os.environ, "ROLLOUT_TEST_MARK": mark, "COLUMNS": "200"}
    with output.open("wb") as sink:
        terminal = subprocess.Popen(
            ["make", "serve", f"ARGS=--port {port}"],
            cwd=ROOT,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,
        )
    try:
        wait_for_rows(terminal, output, 1)
        talk(port)
        wait_for_rows(terminal, output, 2)
        segments = shared_memory_of(processes_marked(mark))
        os.killpg(terminal.pid, signal.SIGINT)  # Ctrl-C reaches the whole foreground group
        terminal.wait(90)
        text = output.read_text(errors="replace")
        assert "Traceback" not in text, text[-4000:]
        deadline = time.monotonic() + 20
        while (left := processes_marked(mark)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not left, [process.cmdline() for process in left]
        assert not [segment for segment in segments if Path(segment).exists()]
    finally:
        for process in processes_marked(mark):
            process.kill()
        terminal.wait()


def wait_for_rows(terminal: subprocess.Popen[bytes], output: Path, count: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        text = output.read_text(errors="replace")
        if len(ROW.findall(text)) >= count:
            return
        assert terminal.poll() is None, f"ended with {terminal.returncode}:\n{text[-4000:]}"
        assert time.monotonic() < deadline, text[-4000:]
        time.sleep(0.2)


def talk(port: int) -> None:
    """A plain openai script: chat, streaming, completions."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        messages: list = [{"role": "user", "content": "What is the capital of France?"}]
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16)
        assert answer.choices[0].message.content
        chunks = list(client.chat.completions.create(model=model, messages=messages, max_tokens=16, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        completion = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8)
        assert completion.choices[0].text
