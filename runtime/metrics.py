"""Prometheus metrics of the sync, on the registry that vLLM's `/metrics` already serves."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Enum, Gauge, Histogram

from sync.coordinator import SyncReport, SyncState

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class SyncMetrics:
    """An observer of the coordinator (`sync.coordinator.Observer`)."""

    def __init__(self, version: int, registry: CollectorRegistry = REGISTRY) -> None:
        self._version = Gauge("rollout_policy_version", "Policy version that is served", registry=registry)
        self._version.set(version)
        self._state = Enum(
            "rollout_sync_state", "State of the sync", states=[state.value for state in SyncState], registry=registry
        )
        self._phase = Histogram(
            "rollout_sync_phase_seconds",
            "Time of a sync by phase; fetch, decode and map are added up over planner threads",
            ["phase"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._syncs = Counter("rollout_syncs", "Syncs by outcome", ["outcome"], registry=registry)
        self._payload = Counter("rollout_sync_payload_bytes", "Compressed bytes fetched", registry=registry)
        self._elements = Counter("rollout_sync_changed_elements", "Checkpoint elements changed", registry=registry)

    def on_state(self, state: SyncState, version: int, previous_state_ms: float) -> None:
        self._state.state(state.value)

    def on_report(self, report: SyncReport) -> None:
        self._version.set(report.version)
        self._syncs.labels("live").inc()
        self._payload.inc(report.payload_bytes)
        self._elements.inc(report.changed_elements or 0)
        for name, milliseconds in report.timings_ms.items():
            self._phase.labels(name.removesuffix("_ms")).observe(milliseconds / 1e3)

    def on_failure(self, version: int, error: Exception) -> None:
        self._syncs.labels(type(error).__name__).inc()
