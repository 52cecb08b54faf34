"""The console script `rollout-serve`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from kvtier.server import ServerFailed
from kvtier.sizing import TierTooSmall
from sync.errors import PublicationError, StoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server; returns the exit status."""
    if "--demo" in (sys.argv[1:] if arguments is None else arguments):
        from runtime.demo.session import quiet_engine_logs

        quiet_engine_logs()  # before vLLM is imported, which reads the level once
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args

    from runtime.options import parse_arguments

    cli_env_setup()
    options = parse_arguments(arguments)
    configure_logging_from_args(options)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    logging.getLogger("rollout").setLevel(logging.INFO)
    try:
        if options.demo:
            from runtime.demo.session import run_demo

            return run_demo(options)
        from runtime.server import serve

        return serve(options)
    except KeyboardInterrupt:
        return 130
    except (PublicationError, StoreError, ServerFailed, TierTooSmall) as error:
        print(f"rollout-serve: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
