"""Which token ids filler prompts are made of, and their text where an endpoint wants text.

Only token counts and equalities matter to a replay, so any ids do. For text they must survive the server's own
tokenizer: with a tokenizer at hand, only whole words are used (a space and letters, one token each), which
encode back to themselves wherever the tokenizer splits at spaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_agentx.types import TraceError

_WORD = re.compile(r"\A [A-Za-z]+\Z")
_FEWEST_WORDS = 64
_RESERVED_IDS = 256
"""Without a tokenizer the lowest ids are left out: special and byte tokens live there in most vocabularies."""


@dataclass(frozen=True)
class Vocabulary:
    """``token_ids``: int64 [n], the ids that filler is drawn from. ``tokenizer``: a Hugging Face one, or None."""

    token_ids: npt.NDArray[np.int64]
    tokenizer: Any = field(default=None, repr=False)

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of a text, without special tokens. Raises TraceError without a tokenizer."""
        ids: list[int] = self._needed("a trace of texts")(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, token_ids: npt.NDArray[np.int64]) -> str:
        """The text of filler tokens, int64 [tokens]. Raises TraceError without a tokenizer."""
        text: str = self._needed("the chat endpoint").decode(token_ids.tolist())
        return text

    def _needed(self, purpose: str) -> Any:
        if self.tokenizer is None:
            raise TraceError(f"{purpose} needs the served model's tokenizer: pass --tokenizer DIR_OR_NAME")
        return self.tokenizer


def vocabulary_of_size(size: int) -> Vocabulary:
    """Filler ids for a vocabulary of ``size`` entries; no text."""
    if size < 2:
        raise TraceError(f"--vocab-size: expected at least 2, found {size}")
    return Vocabulary(np.arange(min(_RESERVED_IDS, size // 2), size, dtype=np.int64))


def vocabulary_of_tokenizer(name: str) -> Vocabulary:
    """Filler words of a Hugging Face tokenizer, given by directory or name (loads ``transformers``)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    ids = np.arange(len(tokenizer), dtype=np.int64)
    texts = tokenizer.batch_decode([[int(token)] for token in ids])
    words = [(token, text) for token, text in zip(ids, texts, strict=True) if _WORD.match(text)]
    encoded = tokenizer([text for _, text in words], add_special_tokens=False)["input_ids"] if words else []
    stable = [token for (token, _), back in zip(words, encoded, strict=True) if list(back) == [token]]
    if len(stable) < _FEWEST_WORDS:  # a toy or byte-level vocabulary: ids still work, text would not be exact
        return Vocabulary(vocabulary_of_size(len(tokenizer)).token_ids, tokenizer)
    return Vocabulary(np.array(stable, dtype=np.int64), tokenizer)


def vocabulary_of_model(root: str) -> Vocabulary | None:
    """The vocabulary of a model directory that this machine can read (its ``config.json``), else None."""
    path = Path(root) / "config.json"
    if not path.is_file():
        return None
    size = json.loads(path.read_text()).get("vocab_size")
    return vocabulary_of_size(size) if isinstance(size, int) else None
