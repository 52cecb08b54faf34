"""The server under traffic while a real trainer publishes: SmolLM2, the openai SDK, local directory and real S3."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import openai
import pytest
from seaweed import BUCKET
from serving import SMALL_ARGUMENTS, Server, Trainer, demo_trainer, running_server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MODEL = "policy"
VERSIONS = 3
TOKENS = 150
LIVE_TIMEOUT_S = 400


@pytest.fixture(scope="module", params=["local", "s3"])
def live(
    request: pytest.FixtureRequest, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, str, dict[str, str]]]:
    """A server at version 0 of the demo model, following an empty store of each kind."""
    directory = tmp_path_factory.mktemp("live")
    if request.param == "s3":
        environment: dict[str, str] = request.getfixturevalue("s3_server")
        store = f"s3://{BUCKET}/live-{time.time_ns()}"
    else:
        environment, store = {}, str(directory / "store")
    arguments = (str(demo_model), "--policy-store", store, "--served-model-name", MODEL, "--enable-scale-out")
    with running_server(directory, *arguments, *SMALL_ARGUMENTS, environment=environment) as server:
        server.wait_ready()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            yield server, store, environment


class Stream:
    """One streaming request: when its chunks came, the version it started on, how it ended."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.started_on: int | None = None
        self.finish_reason: str | None = None
        self.tokens = 0


async def stream_completion(client: openai.AsyncOpenAI) -> Stream:
    stream = Stream()
    response = await client.completions.with_raw_response.create(
        model=MODEL,
        prompt="Once upon a time",
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    stream.started_on = int(response.headers["x-policy-version"])
    async for chunk in response.parse():
        if chunk.usage is not None:
            stream.tokens = chunk.usage.completion_tokens
        if chunk.choices:
            stream.arrivals.append(time.monotonic())
            stream.finish_reason = chunk.choices[0].finish_reason or stream.finish_reason
    return stream


class SeenCommit(NamedTuple):
    """A version that a client saw go live: between the two looks, with the pause that the server reports."""

    before: float
    after: float
    pause_ms: float


async def watch_commits(server: Server, trainer: Trainer, last_version: int) -> list[SeenCommit]:
    """Looks at `/policy` until `last_version` is served."""
    seen: list[SeenCommit] = []
    version, looked_at = (await asyncio.to_thread(server.get, "/policy"))["version"], time.monotonic()
    deadline = looked_at + LIVE_TIMEOUT_S
    while version < last_version:
        await asyncio.sleep(0.02)
        policy, now = await asyncio.to_thread(server.get, "/policy"), time.monotonic()
        assert policy["state"] != "failed" and trainer.is_well() and now < deadline, (
            f"version {last_version} is not live: {policy}\ntrainer:\n{trainer.tail()}\nserver:\n{server.tail()}"
        )
        if policy["version"] == version:
            looked_at = now
        elif (report := policy["last_sync"]) and report["version"] == policy["version"]:
            seen.append(SeenCommit(looked_at, now, report["timings_ms"]["pause_ms"]))
            version, looked_at = policy["version"], now
    return seen


async def talk(client: openai.AsyncOpenAI, oldest: int) -> None:
    """What a plain script does: a chat and a completion."""
    chat = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Name a colour."}], max_tokens=4
    )
    assert chat.parse().choices[0].message.content
    assert int(chat.headers["x-policy-version"]) >= oldest
    completion = await client.completions.create(model=MODEL, prompt="The sun is", max_tokens=4)
    assert completion.choices[0].finish_reason in {"length", "stop"}


def test_versions_go_live_under_streams_and_an_openai_script_works(
    live: tuple[Server, str, dict[str, str]], demo_model: Path, tmp_path: Path
) -> None:
    server, store, _ = live
    start = server.get("/policy")["version"]

    async def traffic(trainer: Trainer) -> tuple[list[Stream], list[SeenCommit]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            watching = asyncio.create_task(watch_commits(server, trainer, start + VERSIONS))
            streams: list[Stream] = []
            while not watching.done():
                *finished, _ = await asyncio.gather(
                    stream_completion(client), stream_completion(client), talk(client, start)
                )
                streams += finished
            return streams, await watching

    with demo_trainer(store, demo_model, VERSIONS, tmp_path / "trainer.log") as trainer:
        streams, commits = asyncio.run(traffic(trainer))
    assert [stream.finish_reason for stream in streams] == ["length"] * len(streams)
    assert [stream.tokens for stream in streams] == [TOKENS] * len(streams)
    assert min(stream.started_on for stream in streams if stream.started_on is not None) == start
    assert commits
    assert_pause_is_as_reported(streams, commits)
    policy = server.get("/policy")
    assert policy["state"] == "idle"
    assert policy["ledger"]["size_bytes"] == policy["last_sync"]["total_elements"] * 2


def assert_pause_is_as_reported(streams: list[Stream], commits: list[SeenCommit]) -> None:
    """No client waits longer around a commit than the reported pause and twice what it waits elsewhere anyway.

    The median over the commits has to hold: a wait that the server does not report shows at every commit, while a
    stall of a shared machine hits one.
    """
    gaps = [gap for stream in streams for gap in pairwise(stream.arrivals)]
    unreported: list[float] = []
    for commit in commits:
        pause_s = commit.pause_ms / 1e3
        around = [gap for gap in gaps if gap[0] < commit.after and gap[1] > commit.before - pause_s]
        others = [after - before for before, after in gaps if (before, after) not in around]
        if around:  # A commit may fall between two streams.
            unreported.append(max(after - before for before, after in around) - pause_s - 2 * max(others))
    assert statistics.median(unreported) <= 0, (unreported, commits)


def test_a_cached_prefix_is_reused_within_one_version(
    live: tuple[Server, str, dict[str, str]],
) -> None:
    """Namespaces cost no reuse within a version; that none crosses versions is proved in tests/kvtier."""
    server, _, _ = live
    prompt = "word " * 300

    def cached_tokens() -> int:
        status, answer = server.post(
            "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        )
        assert status == 200, answer
        return prefix_hits(server)

    first = cached_tokens()
    assert cached_tokens() > first, "within one version the prefix is reused"


def prefix_hits(server: Server) -> int:
    import urllib.request

    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as response:
        text = response.read().decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:prefix_cache_hits_total")]
    return int(float(lines[0].rsplit(" ", 1)[1]))


def test_tokens_carry_the_policy_version_that_made_them(live: tuple[Server, str, dict[str, str]]) -> None:
    """vLLM's own spans of weight versions, on the route that RL trainers read them from."""
    server, _, _ = live
    version = server.get("/policy")["version"]
    body = {"model": MODEL, "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 3, "ignore_eos": True}}
    status, answer = server.post("/inference/v1/generate", body)
    assert status == 200, answer
    assert answer["choices"][0]["weight_versions"] == [{"version": str(version), "start": 0, "end": 3}]


def test_policy_metrics_are_served(live: tuple[Server, str, dict[str, str]]) -> None:
    import urllib.request

    server, _, _ = live
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as response:
        text = response.read().decode()
    version = server.get("/policy")["version"]
    assert f"rollout_policy_version {float(version)}" in text
    for phase in ("fetch", "decode", "map", "stage", "pause", "commit", "live"):
        assert f'rollout_sync_phase_seconds_count{{phase="{phase}"}}' in text


def test_health_and_models_answer_with_the_version(live: tuple[Server, str, dict[str, str]]) -> None:
    import urllib.request

    server, _, _ = live
    version = str(server.get("/policy")["version"])
    for path in ("/health", "/v1/models"):
        with urllib.request.urlopen(f"{server.url}{path}", timeout=30) as response:
            assert response.status == 200
            assert response.headers["x-policy-version"] == version
