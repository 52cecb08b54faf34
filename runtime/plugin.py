"""vLLM general plugin: loaded in the API process, the engine core and every worker, before a model is built.

Inert unless `rollout-serve` started the process (it sets `ROLLOUT_SERVE`), since installing this package must not
change a plain vLLM. It adds methods to the engine core, and keeps CPU weights where deltas can be written.
"""

from __future__ import annotations

import os

ENABLED_VARIABLE = "ROLLOUT_SERVE"


def register() -> None:
    """The entry point `vllm.general_plugins`. May run more than once."""
    if os.environ.get(ENABLED_VARIABLE) != "1":
        return
    from vllm.platforms import current_platform
    from vllm.v1.engine.core import EngineCore

    from runtime.engine_core import UTILITIES

    for utility in UTILITIES:
        setattr(EngineCore, utility.__name__, utility)
    if current_platform.is_cpu():
        _keep_cpu_weights_plain()


def _keep_cpu_weights_plain() -> None:
    """Stops vLLM from moving CPU linear weights into private, repacked copies (oneDNN handlers, AMX tiles).

    Such copies cannot be written in place. vLLM then falls back to torch's linear on the parameter itself, which
    costs 1.3-3x per GEMM on machines that have those kernels.
    """
    import vllm._custom_ops as custom_ops
    import vllm.model_executor.layers.utils as layer_utils

    custom_ops._supports_onednn = False
    layer_utils._CPU_SGL_GEMM_MAX_WEIGHT_BYTES = -1
