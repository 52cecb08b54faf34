"""What `rollout-serve` mixes into vLLM's worker: vLLM takes one class."""

from __future__ import annotations

from kvtier.worker import KvTierWorkerExtension
from sync.worker import PolicyWorkerExtension


class RolloutWorkerExtension(PolicyWorkerExtension, KvTierWorkerExtension):
    """Both halves; they share nothing."""
