"""Prometheus metrics of the KV tier, on the registry that vLLM's `/metrics` already serves."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from kvtier.canary import CanaryReport

# Versions come every few seconds for days: older ones leave the label set.
KEPT_VERSIONS = 8
_TIERS = ("gpu", "host", "computed")


class KvMetrics:
    """Counts prompt tokens by where their KV came from, and mirrors the tier's state."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._prompt = Counter(
            "rollout_kv_prompt_tokens",
            "Prompt tokens by where their KV came from, for the latest policy versions",
            ["tier", "policy_version"],
            registry=registry,
        )
        self._bytes = Gauge("rollout_kv_tier_bytes", "Host KV tier", ["kind"], registry=registry)
        self._entries = Gauge("rollout_kv_tier_entries", "Entries of the host KV tier", registry=registry)
        self._works = Gauge(
            "rollout_kv_tier_works", "1 if the last canary was reloaded from the host tier, 0 if not", registry=registry
        )
        self._restarts = Gauge("rollout_kv_tier_restarts", "Restarts of the tier's server", registry=registry)
        self._by_version: OrderedDict[str, dict[str, int]] = OrderedDict()

    def on_outputs(self, outputs: Any) -> None:
        """One step's outputs of the engine core (vLLM's `EngineCoreOutputs`)."""
        for output in outputs.outputs:
            stats = output.prefill_stats
            if stats is not None:
                counts = (stats.num_local_cached_tokens, stats.num_external_cached_tokens, stats.num_computed_tokens)
                self._count(str(outputs.weight_version), counts)

    def _count(self, version: str, counts: tuple[int, int, int]) -> None:
        if version not in self._by_version:
            self._by_version[version] = dict.fromkeys(_TIERS, 0)
            while len(self._by_version) > KEPT_VERSIONS:
                oldest, _ = self._by_version.popitem(last=False)
                for tier in _TIERS:
                    self._prompt.remove(tier, oldest)
        for tier, tokens in zip(_TIERS, counts, strict=True):
            self._prompt.labels(tier, version).inc(tokens)
            self._by_version[version][tier] += tokens

    def prompt_tokens(self) -> dict[str, dict[str, int]]:
        """`{version: {"gpu": n, "host": n, "computed": n}}`, the latest versions."""
        return {version: dict(counts) for version, counts in self._by_version.items()}

    def on_canary(self, report: CanaryReport) -> None:
        self._works.set(report.works)

    def on_tier(self, described: dict[str, Any]) -> None:
        """What the tier's `describe` answers."""
        self._bytes.labels("capacity").set(described["capacity_bytes"])
        self._restarts.set(described["restarts"])
        if "used_bytes" in described:
            self._bytes.labels("used").set(described["used_bytes"])
            self._entries.set(described["entries"])
        else:
            self._works.set(0)
