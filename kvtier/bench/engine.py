"""An in-process engine core, driven step by step. Knows vLLM."""

from __future__ import annotations

import os
import time
from typing import Any

from kvtier.bench.sizes import Arm, Sizes, make_tokens
from kvtier.scheduler import forget_prefix


class BenchEngine:
    """Serves one arm. `max_tokens`: the longest prompt with its output."""

    def __init__(self, checkpoint: str, arm: Arm, max_tokens: int) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        from vllm import LLM

        self.llm = LLM(
            checkpoint,
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=max_tokens,
            max_num_batched_tokens=2048,
            num_gpu_blocks_override=arm.pool_blocks,
            kv_transfer_config=arm.transfer,
        )
        self.engine = self.llm.llm_engine
        self.core: Any = self.engine.engine_core.engine_core
        _yield_when_idle(self.core)
        self._count = 0
        self.first_token_ms(make_tokens(300, "warm-up"), "warm-up")

    def add(self, tokens: list[int], namespace: str, max_tokens: int) -> str:
        """Returns the request's name."""
        from vllm import SamplingParams

        self._count += 1
        parameters = SamplingParams(temperature=0, max_tokens=max_tokens, min_tokens=max_tokens, detokenize=False)
        prompt = {"prompt_token_ids": tokens, "cache_salt": namespace}
        self.engine.add_request(str(self._count), prompt, parameters)
        return str(self._count)

    def first_token_ms(self, tokens: list[int], namespace: str) -> tuple[float, int]:
        """Milliseconds to the first token of a lone request, and how many prompt tokens were cached."""
        start = time.perf_counter()
        name = self.add(tokens, namespace, 1)
        finished = None
        while finished is None:
            finished = next((output for output in self.engine.step() if output.request_id == name), None)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        self.drain()
        return elapsed_ms, finished.num_cached_tokens or 0

    def drain(self) -> None:
        """Steps until nothing is left, stores included."""
        while self.core.scheduler.has_requests():
            self.engine.step()

    def forget(self, tokens: list[int], namespace: str) -> None:
        forget_prefix(self.core, tokens, namespace)

    def run_sessions(self, sizes: Sizes, concurrency: int, namespace: str) -> tuple[dict[str, Any], list[list[int]]]:
        """Closed loop: `concurrency` sessions at a time, each turn sends all that went before, and its answer.

        Returns figures and each session's whole text. The first turns are cold for everybody: they fill the tier and
        are not counted. Then turn by turn over all sessions: between two turns of one, all others have been in the
        pool.
        """
        sessions = range(sizes.sessions)
        histories = {session: make_tokens(sizes.prefix_tokens, f"session-{session}") for session in sessions}
        self._run_turns(sizes, concurrency, namespace, histories, [(session, 0) for session in sessions])
        turns = [(session, turn) for turn in range(1, sizes.turns) for session in sessions]
        counts = self._run_turns(sizes, concurrency, namespace, histories, turns)
        figures = {
            "output_tokens_per_s": counts["generated"] / counts["seconds"],
            "seconds": counts["seconds"],
            "hit_rate": counts["cached"] / counts["asked"],
        }
        return figures, list(histories.values())

    def _run_turns(
        self,
        sizes: Sizes,
        concurrency: int,
        namespace: str,
        histories: dict[int, list[int]],
        todo: list[tuple[int, int]],
    ) -> dict[str, float]:
        counts = {"asked": 0.0, "cached": 0.0, "generated": 0.0}
        running: dict[str, int] = {}
        start = time.perf_counter()
        while todo or running:
            # A turn waits for its session's last one, whose answer it sends.
            while len(running) < concurrency:
                ready = next((step for step in todo if step[0] not in running.values()), None)
                if ready is None:
                    break
                todo.remove(ready)
                session, turn = ready
                # New lists: the engine lives in this process and keeps the ones it was given.
                histories[session] = histories[session] + make_tokens(sizes.turn_tokens, f"turn-{session}-{turn}")
                running[self.add(histories[session], namespace, sizes.output_tokens)] = session
            for output in self.engine.step():
                if output.finished:
                    session = running.pop(output.request_id)
                    counts["asked"] += len(output.prompt_token_ids)
                    counts["cached"] += output.num_cached_tokens or 0
                    counts["generated"] += len(output.outputs[0].token_ids)
                    histories[session] = histories[session] + list(output.outputs[0].token_ids)
        counts["seconds"] = time.perf_counter() - start
        self.drain()
        return counts


def _yield_when_idle(core: Any) -> None:
    """As vLLM's engine process does: a step that computed nothing leaves a millisecond to the connector's threads."""
    post_step = core.post_step

    def post_step_and_yield(model_executed: bool) -> None:
        post_step(model_executed)
        if not model_executed and core.scheduler.has_requests():
            time.sleep(0.001)

    core.post_step = post_step_and_yield
