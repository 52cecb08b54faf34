"""Where this program keeps files between runs."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "ROLLOUT_CACHE"


def cache_directory() -> Path:
    """``$ROLLOUT_CACHE``, else ``$XDG_CACHE_HOME/rollout-serve``, else ``~/.cache/rollout-serve``."""
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rollout-serve"
