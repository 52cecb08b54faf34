"""What the server tests share: the real demo model."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The real SmolLM2-135M-Instruct, converted once and cached."""
    from runtime.demo.convert import ensure_demo_model

    return ensure_demo_model()
