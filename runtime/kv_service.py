"""The KV tier of one server: from flags to a tier that is sized, watched, checked by the canary and reported."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from prometheus_client import REGISTRY, CollectorRegistry

from kvtier.canary import CanaryReport, Probe, run_canary
from kvtier.lmcache_tier import LmcacheTier
from kvtier.native_tier import NativeTier
from kvtier.server import ServerUnreachable
from kvtier.sizing import SERVER_OVERHEAD_BYTES, TierTooSmall, free_memory, tier_size
from kvtier.types import Backend, HostTier, TierRequest
from runtime.admission import OWN_NAMESPACE
from runtime.engine import VllmEngine
from runtime.kv_metrics import KvMetrics
from runtime.kv_options import tier_request

if TYPE_CHECKING:
    from runtime.policy import PolicyService

logger = logging.getLogger("rollout.kv")
DEFAULT_BLOCK_TOKENS = 128
# A delta of 3% density takes about 18% of the model while it is staged: addresses, new and old values, payload.
STAGING_FRACTION = 0.25
REFRESH_INTERVAL_S = 15.0


@contextlib.asynccontextmanager
async def started_tier(options: argparse.Namespace) -> AsyncIterator[HostTier | None]:
    """Starts the tier that `options` ask for and tells vLLM about it; ends it after the engine.

    Raises ServerFailed, TierTooSmall.
    """
    request = tier_request(options)
    if request is None:
        yield None
        return
    from vllm.config import KVTransferConfig

    _require_room(request)
    tier = _tier(request, options.block_size)
    await tier.start()
    try:
        options.kv_transfer_config = KVTransferConfig(**tier.transfer_config())
        yield tier
    finally:
        await tier.close()


async def start_kv(tier: HostTier | None, policy: PolicyService, async_llm: Any) -> KvService:
    """After verification and deletion: sizes, watches and checks the tier. Raises ServerFailed."""
    assert policy.engine is not None
    service = KvService(tier, policy.engine, async_llm)
    await service.start(policy.startup.get("model_bytes", 0), policy.startup.get("freed_bytes", 0))
    return service


def chunk_tokens(block_tokens: int | None) -> int:
    """The tier's chunk: the least multiple of vLLM's block size that has at least 128 tokens."""
    block = block_tokens or DEFAULT_BLOCK_TOKENS
    return -(-DEFAULT_BLOCK_TOKENS // block) * block


def _tier(request: TierRequest, block_tokens: int | None) -> HostTier:
    if request.backend is Backend.NATIVE:
        return NativeTier(request, block_tokens or default_block_tokens())
    return LmcacheTier(request, chunk_tokens(block_tokens))


def default_block_tokens() -> int:
    """vLLM's block size where none is asked for: it depends on the platform."""
    from vllm.platforms import current_platform

    return DEFAULT_BLOCK_TOKENS if current_platform.is_cpu() else 16


def _require_room(request: TierRequest) -> None:
    if request.size_bytes is None:
        return
    free = free_memory()
    needed = request.size_bytes + SERVER_OVERHEAD_BYTES
    if needed > free.free_bytes:
        raise TierTooSmall(
            f"--kv-tier asks for {request.size_bytes / 1e9:.1f} GB, {needed / 1e9:.1f} GB with its server, but "
            f"{free.limit} has {free.free_bytes / 1e9:.1f} GB left; ask for less or use --kv-tier auto"
        )


class KvService:
    """`canary` is the last report; None until the first has run."""

    def __init__(
        self, tier: HostTier | None, engine: VllmEngine, async_llm: Any, registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._tier = tier
        self._engine = engine
        self._llm = async_llm
        self._refresher: asyncio.Task[None] | None = None
        self._canary_lock = asyncio.Lock()
        self._metrics = KvMetrics(registry)
        self.canary: CanaryReport | None = None
        engine.observe_outputs(self._metrics.on_outputs)

    async def start(self, model_bytes: int, dropped_bytes: int) -> None:
        """After verification and deletion: final size, supervision, first canary."""
        tier = self._tier
        if tier is None:
            return
        await tier.attach(self._engine)
        self._engine.has_tier = True
        if tier.request.size_bytes is None:
            await self._size(tier, model_bytes, dropped_bytes)
        self._engine.on_namespace = tier.reclaim
        await self.run_canary()
        self._refresher = asyncio.create_task(self._refresh_forever(tier), name="kv-metrics")

    async def _size(self, tier: HostTier, model_bytes: int, dropped_bytes: int) -> None:
        try:
            size = tier_size(await asyncio.to_thread(free_memory), int(model_bytes * STAGING_FRACTION), node_share())
        except TierTooSmall as error:
            logger.warning("the KV tier stays at %.0f MB: %s", tier.capacity_bytes / 1e6, error)
            return
        await tier.resize(size.capacity_bytes)
        logger.info(size.sentence(dropped_bytes))

    async def run_canary(self) -> CanaryReport | None:
        """Checks the tier end to end; None without a tier. Concurrent calls wait for each other."""
        if self._tier is None:
            return None
        async with self._canary_lock:
            model = self._llm.model_config
            chunk = self._tier.chunk_tokens
            if model.max_model_len < 2 * chunk + 2:
                reason = f"the context of {model.max_model_len} tokens is too short for two chunks of {chunk}"
                self.canary = CanaryReport(False, reason, self._engine.gate.version)
            else:
                engine = _CanaryEngine(self._engine, self._llm, self._tier)
                try:
                    self.canary = await run_canary(engine, chunk, model.get_vocab_size())
                except ServerUnreachable as error:
                    self.canary = CanaryReport(False, str(error), self._engine.gate.version)
            await self._tier.reclaim([self._engine.gate.namespace.name])
        self._metrics.on_canary(self.canary)
        log = logger.info if self.canary.works else logger.error
        log("KV tier canary: %s", self.canary.reason)
        return self.canary

    def summary(self) -> dict[str, Any]:
        """For `/ready`: whether the tier does what it is for."""
        if self._tier is None:
            return {"backend": "off"}
        works = None if self.canary is None else self.canary.works and self._tier.is_up
        return {
            "backend": self._tier.name,
            "state": self._tier.state,
            "works": works,
            "reason": None if self.canary is None else self.canary.reason,
        }

    async def describe(self) -> dict[str, Any]:
        """What `GET /kv` answers."""
        policy, gate = self._engine.update_policy, self._engine.gate
        tier = {"backend": "off"} if self._tier is None else await self._tier.describe()
        return {
            "tier": tier,
            "canary": None if self.canary is None else self.canary.to_json(),
            "namespace": gate.namespace.name,
            "version": gate.version,
            "on_update": policy.on_update.value,
            "max_lag": policy.max_lag,
            "last_update": self._engine.last_move,
            "prompt_tokens": self._metrics.prompt_tokens(),
        }

    async def close(self) -> None:
        if self._refresher is not None:
            self._refresher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresher

    async def _refresh_forever(self, tier: HostTier) -> None:
        while True:
            self._metrics.on_tier(await tier.describe())
            await asyncio.sleep(REFRESH_INTERVAL_S)


def node_share() -> float:
    """This replica's part of the node's memory: GPUs it can see over GPUs present; all of it without GPUs."""
    import torch

    present = len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()])
    if not present or not torch.cuda.is_available():
        return 1.0
    visible: int = torch.cuda.device_count()
    return min(1.0, visible / present)


class _CanaryEngine:
    """Implements `kvtier.canary.CanaryEngine` over vLLM."""

    def __init__(self, engine: VllmEngine, async_llm: Any, tier: HostTier) -> None:
        self._engine = engine
        self._llm = async_llm
        self._tier = tier

    @property
    def version(self) -> int:
        return self._engine.gate.version

    async def probe(self, token_ids: list[int], cache_salt: str) -> Probe:
        from vllm import SamplingParams

        parameters = SamplingParams(temperature=0, max_tokens=1, logprobs=5, detokenize=False)
        prompt = {"prompt_token_ids": token_ids, "cache_salt": cache_salt}
        token = OWN_NAMESPACE.set(True)
        try:
            async for output in self._llm.generate(prompt, parameters, f"kv-canary-{uuid4().hex}"):
                final = output
        finally:
            OWN_NAMESPACE.reset(token)
        completion = final.outputs[0]
        logprobs = sorted((token_id, entry.logprob) for token_id, entry in completion.logprobs[0].items())
        return Probe(completion.token_ids[0], tuple(logprobs), final.num_cached_tokens or 0)

    async def forget(self, token_ids: list[int], cache_salt: str) -> int:
        blocks: int = await self._engine.utility("rollout_forget_prefix", token_ids, cache_salt)
        return blocks

    async def stored(self, token_ids: list[int], cache_salt: str) -> bool:
        return await self._tier.stored(token_ids, cache_salt)
