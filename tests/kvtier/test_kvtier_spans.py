"""Streams that straddle ten updates, on each OpenAI route as its own SDK sees it: whole, and told which version made
which tokens."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from safetensors.torch import load_file

from sync.publisher import Publisher
from sync.synthetic import perturb, write_random_checkpoint

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
MODEL = "policy"
UPDATES = 10
TOKENS = 1500
START_TIMEOUT_S = 240.0
PROMPT = "Once upon a time"
MORE = {"ignore_eos": True}


class Server:
    """`rollout-serve` with a host tier, at version 0 of a store that has ten more; it moves when it is told."""

    def __init__(self, checkpoint: Path, store: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        command = [
            *(sys.executable, "-m", "runtime.main", str(checkpoint), "--host", "127.0.0.1", "--port", str(port)),
            *("--policy-store", str(store), "--no-follow", "--served-model-name", MODEL, "--kv-tier", "256M"),
            *("--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "32"),
        ]
        with log.open("wb") as sink:
            self.child = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, cwd=ROOT, process_group=0)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as response:
            return str(response.read().decode())

    def sync(self, version: int) -> None:
        body = json.dumps({"version": version}).encode()
        request = urllib.request.Request(f"{self.url}/policy/sync", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            assert json.load(response)["version"] == version

    def running_requests(self) -> int:
        (line,) = [line for line in self.get("/metrics").splitlines() if line.startswith("vllm:num_requests_running{")]
        return int(float(line.rsplit(" ", 1)[1]))

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.child.poll() is None and time.monotonic() < deadline:
            try:
                if json.loads(self.get("/ready"))["ready"]:
                    return
            except OSError:
                time.sleep(0.1)  # not listening yet, or 503
        raise AssertionError(f"not ready:\n{self._log.read_text(errors='replace')[-4000:]}")

    def close(self) -> None:
        self.child.terminate()
        try:
            self.child.wait(60)
        finally:
            self.child.kill()
            self.child.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("spans")
    checkpoint, store = directory / "checkpoint", directory / "store"
    write_random_checkpoint(checkpoint, vocab=512, max_position=4096)
    publisher = Publisher(str(store))
    publisher.publish_anchor(checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    for version in range(1, UPDATES + 1):
        weights = perturb(weights, 0.01, seed=version)
        publisher.publish_delta(weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")
        server = Server(checkpoint, store, directory / "server.log")
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()


class Asked:
    """One request: what came of it so far. `chunks`: with new text, in a stream."""

    def __init__(self) -> None:
        self.chunks = 0
        self.tokens = 0
        self.spans: Any = None
        self.finish: str | None = None

    def finished(self, finish: str | None, tokens: int, spans: Any) -> None:
        self.finish, self.tokens, self.spans = finish, tokens, spans


Ask = Callable[[openai.AsyncOpenAI, Asked], Awaitable[None]]


async def completion(client: openai.AsyncOpenAI, asked: Asked) -> None:
    answer = await client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS, extra_body=MORE)
    (choice,) = answer.choices
    assert answer.usage is not None
    asked.finished(choice.finish_reason, answer.usage.completion_tokens, choice.weight_versions)  # type: ignore[attr-defined]


async def chat(client: openai.AsyncOpenAI, asked: Asked) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": PROMPT}], max_tokens=TOKENS, extra_body=MORE
    )
    (choice,) = answer.choices
    assert answer.usage is not None
    asked.finished(choice.finish_reason, answer.usage.completion_tokens, choice.weight_versions)  # type: ignore[attr-defined]


async def response(client: openai.AsyncOpenAI, asked: Asked) -> None:
    answer = await client.responses.create(model=MODEL, input=PROMPT, max_output_tokens=TOKENS, extra_body=MORE)
    assert answer.usage is not None
    asked.finished(answer.status, answer.usage.output_tokens, answer.weight_versions)  # type: ignore[attr-defined]


async def streamed_completion(client: openai.AsyncOpenAI, asked: Asked) -> None:
    stream = await client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=MORE,
    )
    await read_chunks(stream, asked)


async def streamed_chat(client: openai.AsyncOpenAI, asked: Asked) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=MORE,
    )
    await read_chunks(stream, asked)


async def read_chunks(stream: AsyncIterator[Any], asked: Asked) -> None:
    finish = spans = None
    async for chunk in stream:
        for choice in chunk.choices:
            asked.chunks += 1
            if choice.finish_reason is not None:
                finish, spans = choice.finish_reason, choice.weight_versions
        if chunk.usage is not None:
            asked.finished(finish, chunk.usage.completion_tokens, spans)


async def streamed_response(client: openai.AsyncOpenAI, asked: Asked) -> None:
    stream = await client.responses.create(
        model=MODEL, input=PROMPT, max_output_tokens=TOKENS, stream=True, extra_body=MORE
    )
    async for event in stream:
        if event.type == "response.output_text.delta":
            asked.chunks += 1
        elif event.type == "response.completed":
            assert event.response.usage is not None
            spans = event.response.weight_versions  # type: ignore[attr-defined]
            asked.finished(event.response.status, event.response.usage.output_tokens, spans)


WHOLE: tuple[Ask, ...] = (completion, chat, response)
STREAMED: tuple[Ask, ...] = (streamed_completion, streamed_chat, streamed_response)


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"did not come true: {what}"
        await asyncio.sleep(0.005)


def test_twenty_requests_on_all_routes_straddle_ten_updates_and_say_so(server: Server) -> None:
    """Each update waits until every stream has moved on since the one before, so each has tokens of all versions."""
    asks = [*(STREAMED * 4), *(WHOLE * 3)][:20]
    asked = [Asked() for _ in asks]
    streams = asked[: len(STREAMED) * 4]
    received_at: list[list[int]] = []

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            running = [asyncio.create_task(ask(client, each)) for ask, each in zip(asks, asked, strict=True)]  # type: ignore[arg-type]
            while await asyncio.to_thread(server.running_requests) < len(asks):
                assert not any(task.done() for task in running), [task for task in running if task.done()]
                await asyncio.sleep(0.01)
            for version in range(1, UPDATES + 1):
                seen = [each.chunks for each in streams]
                await until(
                    lambda seen=seen: all(each.chunks > before for each, before in zip(streams, seen, strict=True)),
                    f"tokens of version {version - 1} in every stream",
                )
                received_at.append([each.chunks for each in streams])
                await asyncio.to_thread(server.sync, version)
            await asyncio.wait_for(asyncio.gather(*running), 300)

    asyncio.run(run())
    assert [each.tokens for each in asked] == [TOKENS] * len(asks)
    assert {each.finish for each in asked} == {"length", "incomplete"}
    for each in asked:
        assert_whole(each.spans, TOKENS)
    for position, each in enumerate(streams):
        assert [span["version"] for span in each.spans] == [str(version) for version in range(UPDATES + 1)]
        # What a client had before it asked for an update was not made by it. (A chunk has a token or more.)
        for received, span in zip(received_at, each.spans[1:], strict=True):
            assert span["start"] >= received[position]
    for each in asked[len(streams) :]:
        assert each.spans[0]["version"] == "0" and each.spans[-1]["version"] == str(UPDATES)


def assert_whole(spans: list[dict[str, Any]], tokens: int) -> None:
    """Every token has one version, and versions only go up."""
    assert (spans[0]["start"], spans[-1]["end"]) == (0, tokens)
    for before, after in pairwise(spans):
        assert before["end"] == after["start"]
        assert int(before["version"]) < int(after["version"])
    assert all(span["start"] < span["end"] for span in spans)


def test_each_choice_of_several_prompts_has_its_own(server: Server) -> None:
    version = json.loads(server.get("/policy"))["version"]

    async def run() -> tuple[Any, list[Any]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            # The first prompt's choices may stop at a dot, so lengths differ.
            request: dict[str, Any] = {"model": MODEL, "prompt": ["One", "Two"], "n": 2, "max_tokens": 40, "seed": 1}
            request |= {"extra_body": {"return_token_ids": True}, "stop": ["e", "a"]}
            whole = await client.completions.create(**request)
            return whole, [chunk async for chunk in await client.completions.create(**request, stream=True)]

    whole, chunks = asyncio.run(run())
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    lengths = [len(choice.token_ids) for choice in whole.choices]
    assert len(set(lengths)) > 1, "choices of one length could be mixed up unseen"
    for choice in whole.choices:
        assert choice.weight_versions == [{"version": str(version), "start": 0, "end": len(choice.token_ids)}]
    streamed: dict[int, int] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, 0) + len(choice.token_ids or ())
            if choice.finish_reason is not None:
                (span,) = choice.weight_versions
                assert span == {"version": str(version), "start": 0, "end": streamed[choice.index]}
    assert sorted(streamed) == [0, 1, 2, 3]


def test_beams_carry_no_versions_rather_than_wrong_ones(server: Server) -> None:
    async def run() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            beams = {"use_beam_search": True}
            return await client.completions.create(model=MODEL, prompt="One", n=2, max_tokens=4, extra_body=beams)

    answer = asyncio.run(run())
    assert len(answer.choices) == 2
    assert not any(getattr(choice, "weight_versions", None) for choice in answer.choices)
