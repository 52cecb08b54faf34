"""The server's own prefix-cache counters, in vLLM's Prometheus names, over the measured part of a run."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_NAMES = {
    "vllm:prefix_cache_queries": "queries",
    "vllm:prefix_cache_hits": "gpu_hits",
    "vllm:external_prefix_cache_hits": "host_hits",
}


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Tokens asked of the GPU's prefix cache, found there, and found in the host tier after it missed."""

    queries: float = 0.0
    gpu_hits: float = 0.0
    host_hits: float = 0.0

    def since(self, earlier: CacheCounters) -> CacheCounters:
        return CacheCounters(
            self.queries - earlier.queries,
            self.gpu_hits - earlier.gpu_hits,
            self.host_hits - earlier.host_hits,
        )


def parse_counters(metrics_text: str) -> CacheCounters | None:
    """The counters of a ``/metrics`` page, summed over engines; None where the page has none of them."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics_text):
        name = _NAMES.get(family.name)
        if name is not None:
            totals[name] = sum(sample.value for sample in family.samples if sample.name == f"{family.name}_total")
    return CacheCounters(**totals) if totals else None
