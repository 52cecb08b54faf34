"""Which token ids filler prompts are made of, and their text where an endpoint wants text.

Only token counts and equalities matter to a replay, so any ids do. For text they must survive the server's own
tokenizer: then only whole words are used (a space and letters, one token each), which encode back to themselves
wherever the tokenizer splits at spaces.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_agentx.types import TraceError

_WORD = re.compile(r"\A [A-Za-z]+\Z")
_FEWEST_WORDS = 64
_RESERVED_IDS = 256


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``token_ids``: int64 [n], the ids that filler is drawn from. ``tokenizer``: directory or name, or None."""

    token_ids: npt.NDArray[np.int64]
    tokenizer: str | None = None

    def decode(self, token_ids: npt.NDArray[np.int64]) -> str:
        """The text of filler tokens, int64 [tokens]. Raises TraceError without a tokenizer."""
        text: str = _tokenizer(self.tokenizer, "the chat endpoint").decode(token_ids.tolist())
        return text


def encode(tokenizer: str | None, text: str) -> list[int]:
    """Token ids of a text, without special tokens. Raises TraceError without a tokenizer."""
    ids: list[int] = _tokenizer(tokenizer, "a trace of texts")(text, add_special_tokens=False)["input_ids"]
    return ids


def vocabulary_of_ids(size: int) -> Vocabulary:
    """Filler ids of a vocabulary of ``size`` entries, for endpoints that take token ids.

    Both ends are left out: special, byte and image tokens live there in most vocabularies.
    """
    if size < 2:
        raise TraceError(f"--vocab-size: expected at least 2, found {size}")
    return Vocabulary(np.arange(min(_RESERVED_IDS, size // 2), size - size // 16, dtype=np.int64))


def vocabulary_of_words(name: str | None) -> Vocabulary:
    """Filler words of a tokenizer, for endpoints that take text. Raises TraceError where it has too few."""
    tokenizer = _tokenizer(name, "the chat endpoint")
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    words = [(token, text) for token, text in enumerate(texts) if _WORD.match(text)]
    encoded = tokenizer([text for _, text in words], add_special_tokens=False)["input_ids"] if words else []
    stable = [token for (token, _), back in zip(words, encoded, strict=True) if list(back) == [token]]
    if len(stable) < _FEWEST_WORDS:
        raise TraceError(
            f"tokenizer {name!r} has {len(stable)} whole-word tokens, and exact text needs {_FEWEST_WORDS}: "
            "use --endpoint-type completions, which sends token ids"
        )
    return Vocabulary(np.array(stable, dtype=np.int64), name)


def vocabulary_size(name: str) -> int:
    """Size of a model's vocabulary: from its directory's ``config.json``, else from its tokenizer."""
    config = Path(name) / "config.json"
    if config.is_file():
        size = json.loads(config.read_text()).get("vocab_size")
        if isinstance(size, int):
            return size
    return len(_tokenizer(name, "prompts of token ids"))


@functools.cache
def _load(name: str) -> Any:
    from transformers import AutoTokenizer  # imported here: it takes seconds, and most runs need none

    return AutoTokenizer.from_pretrained(name)


def _tokenizer(name: str | None, purpose: str) -> Any:
    if name is None:
        raise TraceError(f"{purpose} needs the served model's tokenizer: pass --tokenizer DIR_OR_NAME")
    try:
        return _load(name)
    except (OSError, ValueError) as error:
        raise TraceError(f"no tokenizer {name!r}: {error}") from error
