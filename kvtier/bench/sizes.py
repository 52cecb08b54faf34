"""What the benchmark runs: model, lengths, pools. Tokens, blocks of 128 tokens, bytes. No I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

CHUNK = 128
VOCABULARY = 4096
# Prefill has to cost something: this one is Qwen3 of 12 layers, random weights.
MODEL: dict[str, Any] = {
    "hidden": 1024,
    "layers": 12,
    "heads": 16,
    "kv_heads": 8,
    "intermediate": 3072,
    "vocab": VOCABULARY,
}
# What is cached is counted here, not computed with: as little as a model can be.
PAUSE_MODEL: dict[str, Any] = {"hidden": 64, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 64, "vocab": 512}
PAUSE_BLOCK_TOKENS = 32


@dataclass(frozen=True)
class Sizes:
    """One run. `small_pool_blocks`: what the sessions' prefixes outgrow. `decode_*`: streams that all fit the pool.

    `rounds`: fresh engines an arm, where differences of a few percent are looked for.
    """

    prompt_tokens: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    repeats: int = 3
    rounds: int = 3
    concurrency: tuple[int, ...] = (1, 4, 8)
    sessions: int = 8
    turns: int = 4
    prefix_tokens: int = 4096
    turn_tokens: int = 128
    output_tokens: int = 16
    small_pool_blocks: int = 136
    tier_bytes: int = 4 << 30
    store_concurrency: int = 4
    decode_streams: int = 4
    decode_tokens: int = 512
    cached_blocks: tuple[int, ...] = (0, 1_000, 100_000)
    updates: int = 5

    @property
    def session_tokens(self) -> int:
        """A session's length at its end."""
        return self.prefix_tokens + self.turns * (self.turn_tokens + self.output_tokens)

    @property
    def large_pool_blocks(self) -> int:
        """A pool that all sessions fit."""
        return self.sessions * (self.session_tokens // CHUNK + 2) + 8


QUICK = Sizes(
    prompt_tokens=(1024, 4096),
    repeats=1,
    rounds=1,
    concurrency=(4,),
    sessions=4,
    turns=3,
    prefix_tokens=2048,
    output_tokens=8,
    small_pool_blocks=40,
    tier_bytes=1 << 30,
    store_concurrency=2,
    decode_streams=2,
    decode_tokens=256,
    cached_blocks=(0, 1_000, 10_000),
    updates=3,
)


@dataclass(frozen=True)
class Arm:
    """One engine process: its pool, and the tier's transfer configuration or None."""

    pool_blocks: int
    transfer: dict[str, Any] | None
    name: str


def make_tokens(count: int, seed: str, vocabulary: int = VOCABULARY) -> list[int]:
    return random.Random(seed).choices(range(3, vocabulary), k=count)
