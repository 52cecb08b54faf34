"""A worker whose weights can move, for updates that matter."""

from __future__ import annotations

import torch

from kvtier.worker import KvTierWorkerExtension


class ShiftingWorker(KvTierWorkerExtension):
    def shift_weights(self, step: float) -> None:
        with torch.inference_mode():
            for name, parameter in self.model_runner.model.named_parameters():  # type: ignore[attr-defined]
                if parameter.dim() == 2 and "embed" not in name:
                    parameter.add_(torch.roll(parameter, 1, 0) * step)
