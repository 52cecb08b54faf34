"""Real fine-tuning on CPU, as the demo trainer does it: fp32 master weights, AdamW, bf16 out.

Owns the model, the optimizer and the order of the training text. Knows nothing of stores or versions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.demo.corpus import docstrings, token_windows

if TYPE_CHECKING:
    import torch

BATCH_SEQUENCES = 2
SEQUENCE_TOKENS = 64


class FineTuner:
    """A causal language model in training, next-token prediction on this project's docstrings.

    Matrix products run in bf16 (autocast), as in mixed-precision training at scale; weights, gradients
    and AdamW moments are fp32: about 16 bytes a parameter.

    Raises ValueError if the checkpoint is not bf16, or names tensors that the loaded model does not have.
    """

    def __init__(self, checkpoint: Path, learning_rate: float) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        self._model.train()
        self._names = _published_names(checkpoint, self._model)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=learning_rate, fused=True)
        tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
        token_ids = [token for text in docstrings() for token in [*tokenizer(text).input_ids, tokenizer.eos_token_id]]
        windows = torch.tensor(token_windows(token_ids, SEQUENCE_TOKENS))
        order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
        self._windows = windows[order]
        self._steps_taken = 0

    @property
    def steps_taken(self) -> int:
        """Optimizer steps since the checkpoint."""
        return self._steps_taken

    def step(self) -> float:
        """Takes one optimizer step on the next batch and returns its mean loss in nats a token."""
        import torch

        first = self._steps_taken * BATCH_SEQUENCES
        batch = self._windows[torch.arange(first, first + BATCH_SEQUENCES) % len(self._windows)]
        with torch.autocast("cpu", torch.bfloat16):
            loss = self._model(input_ids=batch, labels=batch).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._steps_taken += 1
        return float(loss.detach())

    def weights(self) -> dict[str, torch.Tensor]:
        """The policy as a trainer publishes it: a bf16 copy of the masters, under the checkpoint's names.

        The masters keep what bf16 rounds off, so an element changes only once its updates add up to a
        step of bf16; this is what makes real deltas sparse.
        """
        import torch

        state = self._model.state_dict()
        return {name: state[name].to(torch.bfloat16) for name in self._names}


def _published_names(checkpoint: Path, model: Any) -> list[str]:
    """The checkpoint's own tensor names: a tied tensor is in it once, though the model knows it twice."""
    from sync.checkpoint import CheckpointDirectory

    state = model.state_dict()
    tensors = CheckpointDirectory(checkpoint).tensors
    for tensor in tensors:
        if tensor.dtype != "BF16":
            raise ValueError(f"{checkpoint}: tensor {tensor.name}: the demo trains BF16 policies, found {tensor.dtype}")
        if tensor.name not in state:
            raise ValueError(f"{checkpoint}: tensor {tensor.name} is not in the model that transformers loaded")
    return [tensor.name for tensor in tensors]
