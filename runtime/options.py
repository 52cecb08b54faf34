"""The command line of `rollout-serve`: every `vllm serve` flag, and ours."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.kv_options import add_kv_arguments, reject_unsupported_kv

ADMIN_KEY_VARIABLE = "ROLLOUT_ADMIN_KEY"

DESCRIPTION = """Serve a policy while it trains: vLLM's OpenAI server, kept in step with what a trainer publishes.

Engine memory is the only copy of the weights. Each published delta is verified against it, staged while the old
policy serves, and written in place inside a pause of milliseconds."""

EPILOG = f"""examples:
  rollout-serve --demo
      a real model, a real trainer in the background, versions going live in this terminal
  rollout-serve ./qwen3-8b --policy-store s3://bucket/run-17
      serve a checkpoint as version 0 and follow the store
  rollout-serve --policy-store /mnt/policies
      start from the store's newest anchor; its local copy is deleted once engine memory is proven equal

  curl localhost:8000/policy                     which version is served, how the last sync went
  curl localhost:8000/kv                         the host KV tier: capacity, entries, hits by tier and version
  curl -X POST localhost:8000/policy/sync -d '{{"version": 7}}' -H 'content-type: application/json'

S3 reads AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Admin routes (POST /policy/sync)
take requests from this machine only, or with {ADMIN_KEY_VARIABLE} set, from whoever sends it as bearer token.
All flags of `vllm serve` are accepted: --help=listgroup, --help=all, --help=max."""


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that are not vLLM's."""
    group = parser.add_argument_group("policy", "Following a trainer's policy versions")
    group.add_argument("--policy-store", metavar="URL", help="path, file:///path or s3://bucket/prefix to follow")
    group.add_argument(
        "--policy-version", type=_version, default=0, metavar="N", help="version that MODEL is (default: 0)"
    )
    group.add_argument(
        "--follow",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="sync to the store's latest version as it appears (default), or only when POST /policy/sync asks",
    )
    group.add_argument(
        "--follow-interval", type=_seconds, default=1.0, metavar="S", help="seconds between looks (default: 1)"
    )
    group.add_argument(
        "--delete-checkpoint",
        action="store_true",
        help="delete MODEL's weight files too once engine memory is proven equal; by default only copies that "
        "rollout-serve made itself are deleted",
    )
    group.add_argument(
        "--policy-dir",
        type=Path,
        metavar="DIR",
        help="where anchors are brought to before loading, and the ledger is kept "
        "(default: ~/.cache/rollout-serve/managed)",
    )
    group.add_argument(
        "--policy-threads",
        type=_positive,
        default=min(16, os.cpu_count() or 1),
        metavar="N",
        help="low-priority threads that decode deltas (default: one a core, at most 16)",
    )
    group.add_argument(
        "--demo", action="store_true", help="serve SmolLM2-135M while a trainer in the background fine-tunes it"
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses and checks the command line; exits with status 2 and a reason where it cannot be served.

    Imports vLLM, whose own flags are taken as they are.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser: Any = FlexibleArgumentParser(
        prog="rollout-serve",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # First in the help: who runs this program knows vLLM's flags from elsewhere.
    add_policy_arguments(parser)
    add_kv_arguments(parser)
    parser = make_arg_parser(parser)
    options: argparse.Namespace = parser.parse_args(arguments)
    validate_parsed_serve_args(options)
    _reject_unsupported(parser, options)
    reject_unsupported_kv(parser, options)
    return options


def _reject_unsupported(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """One API process and one engine, since a policy change is ordered against admission in that process."""
    for flag, is_used in (
        ("--headless", options.headless),
        ("--grpc", options.grpc),
        ("--api-server-count", (options.api_server_count or 1) > 1),
        ("--data-parallel-size", (options.data_parallel_size or 1) > 1),
        ("--worker-extension-cls", bool(options.worker_extension_cls)),
        ("--enable-sleep-mode", options.enable_sleep_mode),
    ):
        if is_used:
            parser.error(f"{flag} cannot be combined with rollout-serve; run one replica a process instead")
    if options.model_tag is not None:
        options.model = options.model_tag
    if options.demo:
        if options.model_tag is not None or options.policy_store is not None:
            parser.error("--demo brings its own model and store")
    elif options.model_tag is None and options.policy_store is None:
        parser.error("give MODEL, or --policy-store with an anchor in it, or --demo")


def _version(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"a policy version is an integer >= 0, not {text}")
    return value


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, found {text}")
    return value


def _seconds(text: str) -> float:
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"expected a time above 0 seconds, found {text}")
    return value
