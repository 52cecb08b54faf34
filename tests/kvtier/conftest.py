"""A real LMCache server and a real vLLM engine in this process, stepped by hand so that every race can be made."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kvtier.namespace import Namespace, OnUpdate, namespace_salt
from kvtier.server import LmcacheServer
from kvtier.wiring import lmcache_transfer_config
from sync.synthetic import write_random_checkpoint

Result = TypeVar("Result")
CHUNK = 128
Answer = tuple[list[int], list[list[tuple[int, float]]]]


class ServerThread:
    """A supervised server with an event loop of its own."""

    def __init__(self, capacity_bytes: int, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = self.run(self._make(capacity_bytes, directory))

    async def _make(self, capacity_bytes: int, directory: Path) -> LmcacheServer:
        server = LmcacheServer(capacity_bytes, CHUNK, directory)
        await server.start()
        return server

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    def usage(self) -> dict[str, Any]:
        return self.run(self.server.call("usage"))

    def entries(self, namespace: str) -> int:
        return int(self.usage()["namespaces"].get(namespace, {"entries": 0})["entries"])

    def signal(self, number: int) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, number)
        while number == signal.SIGKILL and self.server.pid is not None:
            time.sleep(0.001)

    def restart(self) -> None:
        """What the supervisor does with a dead server."""
        self.run(self.server.resize(self.server.capacity_bytes))

    def stop(self) -> None:
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class SteppedEngine:
    """An in-process engine core: requests are added and steps are taken one by one."""

    def __init__(self, llm: Any, host: ServerThread | None) -> None:
        self.llm = llm
        self.host = host
        self.engine = llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.finished: dict[str, Any] = {}
        self._count = 0
        self._undo: list[Callable[[], None]] = []

    def add(self, tokens: list[int], salt: str, max_tokens: int = 1, logprobs: int = 4) -> str:
        """Adds a request, greedy with logprobs; returns the engine core's id."""
        from vllm import SamplingParams

        self._count += 1
        parameters = SamplingParams(
            temperature=0, max_tokens=max_tokens, min_tokens=max_tokens, logprobs=logprobs, detokenize=False
        )
        before = set(self.scheduler.requests)
        self.engine.add_request(f"r{self._count}", {"prompt_token_ids": tokens, "cache_salt": salt}, parameters)
        (request_id,) = set(self.scheduler.requests) - before
        return str(request_id)

    def request(self, request_id: str) -> Any:
        return self.scheduler.requests[request_id]

    def step(self) -> None:
        for output in self.engine.step():
            if output.finished:
                self.finished[output.request_id] = output

    def step_until(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"the condition did not come true: {self.describe()}"
            self.step()
            if not self.scheduler.running:
                time.sleep(0.001)  # The server has to get a turn too.

    def describe(self) -> dict[str, Any]:
        """Where everybody is."""
        adapter = None if self.host is None else self.worker_connector.worker_adapter
        return {
            "requests": {name: request.status.name for name, request in self.scheduler.requests.items()},
            "finished": {name: output.num_cached_tokens for name, output in self.finished.items()},
            "in flight": self.worker_connector.transfers_in_flight(),
            "healthy": adapter and (adapter.is_healthy, self.connector.scheduler_adapter.is_healthy),
            "trackers": {} if adapter is None else {n: str(t) for n, t in self.connector.request_trackers.items()},
        }

    def run(self, tokens: list[int], salt: str, max_tokens: int = 1) -> Any:
        """Runs one request to its end, stores included; returns vLLM's RequestOutput."""
        self.add(tokens, salt, max_tokens)
        name = f"r{self._count}"
        self.drain()
        return self.finished.pop(name)

    def drain(self) -> None:
        """Steps until nothing is left, and what was stored can be read: a store is answered a moment before that."""
        self.step_until(lambda: not self.scheduler.has_requests())
        while self.host is not None and self.host.server.pid is not None and self.host.usage()["staged_entries"]:
            time.sleep(0.005)

    def pause(self) -> None:
        from vllm.v1.core.sched.interface import PauseState

        self.scheduler.set_pause_state(PauseState.PAUSED_ALL)

    def resume(self) -> None:
        from vllm.v1.core.sched.interface import PauseState

        self.scheduler.set_pause_state(PauseState.UNPAUSED)

    def enter(self, namespace: str, on_update: OnUpdate = OnUpdate.KEEP) -> Any:
        from kvtier.scheduler import enter_namespace

        self.settle()
        self.pause()
        report = enter_namespace(self.core, namespace, on_update)
        self.resume()
        return report

    @property
    def connector(self) -> Any:
        """The scheduler's half."""
        return self.scheduler.connector

    @property
    def worker_connector(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()

    def lookup_is_answered(self, request_id: str) -> bool:
        """Whether the host tier's answer is here, seen by the scheduler or not."""
        queries = self.connector.scheduler_adapter._lookup_status.get(request_id, {})
        return bool(queries) and all(query.query() for query, _ in queries.values())

    def signal_host_at_load(self, number: int) -> None:
        """The server gets the signal between the scheduler's decision to load and the load's arrival there."""
        connector, host = self.connector, self.host
        assert host is not None
        allocate = connector.update_state_after_alloc

        def signal_first(request: Any, blocks: Any, external_tokens: int) -> None:
            allocate(request, blocks, external_tokens)
            if external_tokens:
                del connector.update_state_after_alloc
                host.signal(number)

        connector.update_state_after_alloc = signal_first

    def signal_host_at_store(self, number: int) -> None:
        """The server gets the signal right before the next store is sent to it."""
        context, host = self.worker_connector.worker_adapter.transfer_ctx, self.host
        assert host is not None
        submit = context.submit_store

        def signal_first(*arguments: Any, **more: Any) -> Any:
            del context.submit_store
            host.signal(number)
            return submit(*arguments, **more)

        context.submit_store = signal_first

    def settle(self) -> None:
        """Ends the steps in flight, starting none."""
        self.pause()
        while self.core.batch_queue:
            self.step()
        self.resume()

    def preempt(self, request_id: str) -> None:
        """As vLLM does when it runs out of blocks."""
        self.settle()
        request = self.request(request_id)
        self.scheduler.running.remove(request)
        self.scheduler._preempt_request(request, time.monotonic())

    def run_beside(self, tokens: list[int], salt: str, max_tokens: int) -> Any:
        """Runs a request while all that waits now is kept from running."""
        held = list(self.scheduler.waiting)
        self.scheduler.waiting.remove_requests(held)
        self.add(tokens, salt, max_tokens)
        name = f"r{self._count}"
        self.step_until(lambda: name in self.finished)
        for request in held:
            self.scheduler.waiting.add_request(request)
        return self.finished.pop(name)

    def resume_host_after_preemption(self, seconds: float) -> None:
        """The frozen server goes on this long after vLLM has preempted somebody."""
        scheduler, host = self.scheduler, self.host
        assert host is not None
        preempt = scheduler._preempt_request

        def start_timer(*arguments: Any, **more: Any) -> None:
            del scheduler._preempt_request
            threading.Timer(seconds, host.signal, [signal.SIGCONT]).start()
            preempt(*arguments, **more)

        scheduler._preempt_request = start_timer

    def watch_stores_after_forward(self) -> list[int]:
        """Filled with the number of stores in flight right after each forward."""
        connector, seen = self.worker_connector, []
        start_load = connector.start_load_kv

        def look(context: Any, **more: Any) -> None:
            seen.append(connector.transfers_in_flight()["stores"])
            start_load(context, **more)

        connector.start_load_kv = look
        self._undo.append(lambda: delattr(connector, "start_load_kv"))
        return seen

    def lose_host(self) -> None:
        """What the supervisor tells the engine once the server is dead."""
        self.worker_connector.worker_lost_server()
        self.connector.scheduler_lost_server()

    def find_host(self) -> None:
        assert self.worker_connector.worker_found_server()
        self.connector.scheduler_found_server()

    def forget(self, tokens: list[int], salt: str) -> int:
        from kvtier.scheduler import forget_prefix

        return forget_prefix(self.core, tokens, salt)

    def shift_weights(self, step: float) -> None:
        """A policy change that matters: every weight moves."""
        import torch

        def shift(worker: Any) -> None:
            with torch.inference_mode():
                for name, parameter in worker.model_runner.model.named_parameters():
                    if parameter.dim() == 2 and "embed" not in name:
                        parameter.add_(torch.roll(parameter, 1, 0) * step)

        self.llm.collective_rpc(shift)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    host = ServerThread(256 << 20, tmp_path_factory.mktemp("lmcache"))
    yield host
    host.stop()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = tmp_path_factory.mktemp("kv") / "tiny"
    write_random_checkpoint(
        checkpoint, architecture="qwen3", hidden=128, layers=2, vocab=512, tied=False, tokenizer=False
    )
    return checkpoint


@pytest.fixture(scope="session")
def session_engine(tiny_checkpoint: Path, host: ServerThread) -> Iterator[SteppedEngine]:
    llm = start_llm(tiny_checkpoint, lmcache_transfer_config(host.server.address))
    yield SteppedEngine(llm, host)
    llm.llm_engine.engine_core.shutdown()


def start_llm(checkpoint: Path, transfer: dict[str, Any] | None, dtype: str = "float32", **arguments: Any) -> Any:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["ROLLOUT_SERVE"] = "1"
    # More than one compute thread wait for each other, and beside other work that takes minutes instead of seconds.
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    from vllm import LLM

    return LLM(
        str(checkpoint),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype=dtype,
        max_model_len=2048,
        max_num_batched_tokens=512,
        num_gpu_blocks_override=24,
        worker_extension_cls="kvtier.worker.KvTierWorkerExtension",
        kv_transfer_config=transfer,
        **arguments,
    )


@pytest.fixture
def engine(session_engine: SteppedEngine) -> Iterator[SteppedEngine]:
    """An idle engine with an empty prefix cache and a server that answers, whatever the test before did."""
    assert session_engine.host is not None
    if session_engine.host.server.pid is None:
        session_engine.lose_host()
        session_engine.host.restart()
        session_engine.find_host()
    session_engine.drain()
    session_engine.finished.clear()
    assert session_engine.core.reset_prefix_cache()
    yield session_engine
    while session_engine._undo:
        session_engine._undo.pop()()
    session_engine.resume()
    session_engine.drain()


_namespaces = iter(range(10_000))


@pytest.fixture
def namespaces() -> tuple[str, str]:
    """Two namespaces of successive versions that no other test uses."""
    version = next(_namespaces) * 2
    return Namespace(version).name, Namespace(version + 1).name


def prompt(chunks: int, seed: int = 0, tail: int = 5) -> list[int]:
    """`chunks` full chunks and some tokens more."""
    return [random.Random(seed).randrange(3, 512) for _ in range(chunks * CHUNK + tail)]


def cold(engine: SteppedEngine, tokens: list[int], max_tokens: int = 1) -> Answer:
    """The oracle: what the weights of now say to somebody who has never been here."""
    output = engine.run(tokens, f"policy-0-{next(_namespaces)}.cold", max_tokens)
    assert output.num_cached_tokens == 0
    return answer(output)


def answer(output: Any) -> Answer:
    """Tokens, and every logprob with all its bits."""
    completion = output.outputs[0]
    assert completion.logprobs is not None
    logprobs = [sorted((token, entry.logprob) for token, entry in step.items()) for step in completion.logprobs]
    return list(completion.token_ids), logprobs


def assert_agree(found: Answer, expected: Answer) -> None:
    """The same answer up to rounding: a prefill that skips cached tokens has other shapes than a cold one.

    Policies differ by a thousand times as much (`shift_weights`).
    """
    assert found[0] == expected[0]
    for found_step, expected_step in zip(found[1], expected[1], strict=True):
        assert [token for token, _ in found_step] == [token for token, _ in expected_step]
        assert [p for _, p in found_step] == pytest.approx([p for _, p in expected_step], abs=2e-5)


def salt(namespace: str, caller: str | None = None) -> str:
    return namespace_salt(namespace, caller)
