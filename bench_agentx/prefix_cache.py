"""The theoretical hit rate: what a prefix cache that never forgets would have saved.

AgentX's "theoretical prefix cache hit", over the requests that were really sent, in the order in which they
were: markers, shared prefixes, warm-up and subagents count as the server sees them. No server can beat it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench_agentx.prompts import Prompt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class EndlessPrefixCache:
    """Remembers every prefix that ended at an edge of a prompt (one 64-bit hash each)."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def admit(self, prompt: Prompt) -> int:
        """Remember a prompt; how many of its leading tokens were there already."""
        if len(prompt.token_ids) == 0:
            return 0
        prefixes: list[int] = _prefix_hashes(prompt.token_ids)[prompt.edges - 1].tolist()
        shared = 0
        while shared < len(prefixes) and prefixes[shared] in self._seen:
            shared += 1
        self._seen.update(prefixes[shared:])
        return int(prompt.edges[shared - 1]) if shared else 0


def _prefix_hashes(token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """uint64 [tokens]: a hash of each leading run. Each token is mixed with its place, and the mixes are summed,
    so equal hashes are equal runs (up to 64-bit chance) and all of them cost one pass."""
    places = np.arange(1, len(token_ids) + 1, dtype=np.uint64) * _GOLDEN
    words = token_ids.astype(np.uint64) + places
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.cumsum(words ^ (words >> np.uint64(31)), dtype=np.uint64)
