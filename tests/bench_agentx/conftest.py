from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture
def data() -> Path:
    """Small files of each trace format."""
    return DATA


@pytest.fixture
def shared_traces() -> Path:
    """The public traces, unchanged: from AGENTX_TRACES, or beside the checkout."""
    path = Path(os.environ.get("AGENTX_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
    if not path.is_dir():
        pytest.skip(f"no public traces in {path} (set AGENTX_TRACES)")
    return path
