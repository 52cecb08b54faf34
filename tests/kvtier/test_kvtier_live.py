"""The engine as it is served: AsyncLLM over an engine core in another process, the gate, a supervised tier."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from conftest import CHUNK, prompt

from kvtier.lmcache_tier import LmcacheTier
from kvtier.namespace import KvPolicy, OnUpdate
from kvtier.segments import segment_prefix
from kvtier.sizing import FreeMemory, free_memory
from kvtier.types import Backend, TierRequest
from runtime.admission import AdmissionGate
from runtime.engine import VllmEngine
from runtime.kv_service import KvService

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]
Result = TypeVar("Result")


class Replica:
    """What `rollout-serve` has, without HTTP."""

    def __init__(self, tier: LmcacheTier, async_llm: Any, registry: Any) -> None:
        self.tier = tier
        self.llm = async_llm
        self.engine = VllmEngine(async_llm, AdmissionGate(0))
        self.kv = KvService(tier, self.engine, async_llm, registry)
        self._requests = 0

    async def update(self, policy: KvPolicy, step: float = 0.02) -> float:
        """One policy change, as the coordinator makes it; returns the pause in milliseconds."""
        with self.engine.updating(policy):
            start = time.perf_counter()
            await self.engine.pause()
            await self.engine.collective("shift_weights", step)
            await self.engine.enter_policy(self.engine.gate.version + 1)
            await self.engine.resume()
            return (time.perf_counter() - start) * 1e3

    async def ask(self, tokens: list[int], max_tokens: int = 2, salt: str | None = None) -> Any:
        """The final RequestOutput."""
        from vllm import SamplingParams

        self._requests += 1
        parameters = SamplingParams(
            temperature=0, max_tokens=max_tokens, min_tokens=max_tokens, logprobs=3, detokenize=False
        )
        request = {"prompt_token_ids": tokens} | ({} if salt is None else {"cache_salt": salt})
        async for output in self.llm.generate(request, parameters, f"live-{self._requests}"):
            final = output
        return final

    async def stored(self, entries: int) -> None:
        """Waits until the current namespace has this many entries."""
        name = self.engine.gate.namespace.name
        await until(lambda: self._entries_of(name), entries)

    async def _entries_of(self, name: str) -> int:
        usage = await self.tier.server.call("usage")
        return int(usage["namespaces"].get(name, {"entries": 0})["entries"])

    async def forget(self, tokens: list[int]) -> None:
        assert await self.engine.utility("rollout_forget_prefix", tokens, self.engine.gate.namespace.name) > 0


async def until(value: Callable[[], Awaitable[Any]], expected: Any, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while (found := await value()) != expected:
        assert time.monotonic() < deadline, f"expected {expected}, still {found}"
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def live(tiny_checkpoint: Path) -> Iterator[Callable[[Callable[[Replica], Awaitable[Result]]], Result]]:
    """Runs an async body against one replica, which all tests of the module share."""
    os.environ |= {"ROLLOUT_SERVE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    os.environ |= {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with asyncio.Runner() as runner:
        replica = runner.run(start(tiny_checkpoint))
        yield lambda body: runner.run(body(replica))  # type: ignore[arg-type]
        runner.run(end(replica))


async def start(checkpoint: Path) -> Replica:
    from prometheus_client import CollectorRegistry
    from vllm import AsyncEngineArgs
    from vllm.config import KVTransferConfig
    from vllm.v1.engine.async_llm import AsyncLLM

    tier = LmcacheTier(TierRequest(Backend.LMCACHE, None), CHUNK)
    await tier.start()
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            str(checkpoint),
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="float32",
            max_model_len=1024,
            max_num_batched_tokens=512,
            num_gpu_blocks_override=64,
            worker_extension_cls="kvtier_shifting_worker.ShiftingWorker",
            kv_transfer_config=KVTransferConfig(**tier.transfer_config()),
        )
    )
    replica = Replica(tier, llm, CollectorRegistry())
    with pytest.MonkeyPatch.context() as patch:
        # The pool is allocated whole: a machine that runs other tests at the same time would run out of memory.
        found = FreeMemory(min(3 << 30, free_memory().free_bytes), "this test")
        patch.setattr("runtime.kv_service.free_memory", lambda: found)
        await replica.kv.start(model_bytes=0, dropped_bytes=0)
    return replica


async def end(replica: Replica) -> None:
    await replica.kv.close()
    replica.llm.shutdown()
    await replica.tier.close()
    left = [name for name in os.listdir("/dev/shm") if name.startswith(segment_prefix())]
    assert not [name for name in left if int(name.split("_")[3]) in replica.tier._workers]


Live = Callable[[Callable[[Replica], Awaitable[Any]]], Any]


def test_auto_tier_is_sized_after_the_start_and_passes_the_canary(live: Live) -> None:
    async def body(replica: Replica) -> None:
        described = await replica.kv.describe()
        assert described["tier"]["capacity_bytes"] > 256 << 20
        assert replica.kv.canary is not None and replica.kv.canary.works, replica.kv.canary
        assert replica.kv.summary()["works"] is True
        assert described["prompt_tokens"]["default"]["host"] == 2 * CHUNK

    live(body)


def test_keep_drops_and_hangs_no_stream(live: Live) -> None:
    async def body(replica: Replica) -> None:
        first = replica.engine.gate.version
        streams = [asyncio.create_task(replica.ask(prompt(1, seed=100 + n), 200)) for n in range(20)]
        for _ in range(10):
            await asyncio.sleep(0.3)
            await replica.update(KvPolicy())
        outputs = await asyncio.gather(*streams)
        for output in outputs:
            completion = output.outputs[0]
            assert len(completion.token_ids) == 200
            assert completion.finish_reason == "length"
            spans = completion.weight_versions
            assert spans[0].start == 0 and spans[-1].end == 200
            assert [span.start for span in spans[1:]] == [span.end for span in spans[:-1]]
        assert any(len(output.outputs[0].weight_versions) > 2 for output in outputs)
        assert replica.engine.gate.version == first + 10

    live(body)


def test_abort_ends_running_requests_and_moves_the_others(live: Live) -> None:
    async def body(replica: Replica) -> None:
        running = asyncio.create_task(replica.ask(prompt(1, seed=130), 700))
        await asyncio.sleep(1.0)
        await replica.update(KvPolicy(OnUpdate.ABORT))
        output = await asyncio.wait_for(running, 60)
        assert output.outputs[0].finish_reason == "abort"
        assert 0 < len(output.outputs[0].token_ids) < 700
        assert (await replica.ask(prompt(1, seed=130))).num_cached_tokens == 0

    live(body)


def test_share_reuses_up_to_its_lag_and_not_one_version_more(live: Live) -> None:
    async def body(replica: Replica) -> None:
        share = KvPolicy(OnUpdate.SHARE, 2)
        await replica.update(KvPolicy())
        tokens = prompt(2, seed=140)
        await replica.ask(tokens)
        await replica.stored(2)
        for _ in range(2):
            await replica.update(share)
            await replica.forget(tokens)
            assert (await replica.ask(tokens)).num_cached_tokens == 2 * CHUNK
        await replica.update(share)
        assert (await replica.ask(tokens)).num_cached_tokens == 0

    live(body)


def test_old_namespaces_are_reclaimed_after_the_pause(live: Live) -> None:
    async def body(replica: Replica) -> None:
        old = replica.engine.gate.namespace.name
        await replica.ask(prompt(3, seed=150))
        await replica.stored(await entries_at_least(replica, old, 3))
        await replica.update(KvPolicy())
        await until(lambda: replica._entries_of(old), 0)

    live(body)


async def entries_at_least(replica: Replica, name: str, count: int) -> int:
    while (found := await replica._entries_of(name)) < count:
        await asyncio.sleep(0.05)
    return found


def test_a_server_that_hangs_does_not_hold_the_pause(live: Live) -> None:
    async def body(replica: Replica) -> None:
        await replica.ask(prompt(1, seed=160))
        pid, restarts = replica.tier.server.pid, replica.tier.server.restarts
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        # Its store cannot end, so neither would vLLM's own pause.
        output = await replica.ask(prompt(2, seed=161), 2, salt="fresh")
        pause_ms = await replica.update(KvPolicy())
        assert pause_ms < 5_000
        assert len(output.outputs[0].token_ids) == 2
        await until(lambda: asyncio.sleep(0, replica.tier.server.restarts), restarts + 1)
        await until(lambda: asyncio.sleep(0, replica.tier.state), "running")
        report = await replica.kv.run_canary()
        assert report is not None and report.works, report

    live(body)


def test_killed_server_is_replaced_while_requests_go_on(live: Live) -> None:
    async def body(replica: Replica) -> None:
        streams = [asyncio.create_task(replica.ask(prompt(1, seed=170 + n), 150)) for n in range(6)]
        pid = replica.tier.server.pid
        assert pid is not None
        await asyncio.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        await replica.update(KvPolicy())
        outputs = await asyncio.gather(*streams)
        assert all(len(output.outputs[0].token_ids) == 150 for output in outputs)
        await until(lambda: asyncio.sleep(0, replica.tier.server.pid not in (None, pid)), True)
        await until(lambda: asyncio.sleep(0, replica.tier.state), "running")
        report = await replica.kv.run_canary()
        assert report is not None and report.works, report

    live(body)


def test_a_tier_that_silently_recomputes_is_reported(live: Live) -> None:
    async def body(replica: Replica) -> None:
        server = replica.tier.server
        assert server._watcher is not None and server.pid is not None
        server._watcher.cancel()
        os.kill(server.pid, signal.SIGKILL)
        # Nobody tells the engine: requests are answered, without a tier.
        assert len((await replica.ask(prompt(1, seed=180))).outputs[0].token_ids) == 2
        report = await replica.kv.run_canary()
        assert report is not None and not report.works
        assert replica.kv.summary()["works"] is False
        await server.resize(server.capacity_bytes)
        server.watch()
        report = await replica.kv.run_canary()
        assert report is not None and report.works, report

    live(body)
