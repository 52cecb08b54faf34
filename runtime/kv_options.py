"""The command line of the KV tier: its flags, their checks, and what they mean."""

from __future__ import annotations

import argparse
import importlib.util

from kvtier.namespace import KvPolicy, OnUpdate
from kvtier.sizing import MIN_TIER_BYTES, parse_size
from kvtier.types import Backend, TierRequest

OFF, AUTO = "off", "auto"


def add_kv_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flag group."""
    group = parser.add_argument_group("KV tier", "Host memory that keeps KV which GPU memory evicts")
    group.add_argument(
        "--kv-tier",
        type=_tier,
        metavar="auto|SIZE|off",
        help="auto: what is free once the model is loaded and its disk copy is dropped; SIZE: for example 24G; off: "
        "no tier (default: auto where lmcache is installed, off with --demo)",
    )
    group.add_argument(
        "--kv-tier-backend",
        type=Backend,
        choices=list(Backend),
        default=Backend.LMCACHE,
        metavar="{lmcache,native}",
        help="lmcache: a supervised LMCache server, one a node (default); native: vLLM's own offloading, in the engine",
    )
    group.add_argument(
        "--kv-on-update",
        type=OnUpdate,
        choices=list(OnUpdate),
        default=OnUpdate.KEEP,
        metavar="{keep,recompute,abort,share}",
        help="running requests at a policy change: go on with their KV (keep, default), are prefilled again by the new "
        "weights (recompute), end (abort); new requests never reuse KV of another version, except with share: up to "
        "--kv-max-lag versions old",
    )
    group.add_argument(
        "--kv-max-lag",
        type=int,
        metavar="N",
        help="with share: how many versions a namespace of KV is kept for (default: 1)",
    )


def kv_policy(on_update: OnUpdate, max_lag: int | None) -> KvPolicy:
    """Raises ValueError where the two do not go together."""
    if on_update is OnUpdate.SHARE and max_lag is None:
        max_lag = 1
    return KvPolicy(on_update, max_lag or 0)


def kv_override(on_update: OnUpdate | None, max_lag: int | None) -> KvPolicy | None:
    """What one update asked for; None for what the server was started with. Raises ValueError."""
    if on_update is None:
        if max_lag is not None:
            raise ValueError("kv_max_lag needs kv_on_update: share")
        return None
    return kv_policy(on_update, max_lag)


def tier_request(options: argparse.Namespace) -> TierRequest | None:
    """What to start; None for no tier."""
    choice = options.kv_tier
    if choice is None:
        choice = AUTO if not options.demo and _has_lmcache() else OFF
    if choice == OFF:
        return None
    return TierRequest(options.kv_tier_backend, None if choice == AUTO else choice)


def reject_unsupported_kv(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits with a reason where the flags do not fit together or the machine lacks what they need."""
    try:
        kv_policy(options.kv_on_update, options.kv_max_lag)
    except ValueError as error:
        parser.error(f"--kv-max-lag: {error}")
    if options.kv_transfer_config is not None:
        # A policy change moves waiting requests to another namespace, which only our connectors can follow.
        parser.error("--kv-transfer-config cannot be combined with rollout-serve; use --kv-tier")
    request = tier_request(options)
    if request is not None and request.backend is Backend.LMCACHE and not _has_lmcache():
        parser.error("--kv-tier needs lmcache, which is not installed; install it or use --kv-tier-backend native")
    if request is not None and request.backend is Backend.NATIVE and request.size_bytes is None:
        parser.error("--kv-tier-backend native allocates its pool while the engine starts: give --kv-tier SIZE")
    if request is not None and options.enable_prefix_caching is False:
        parser.error("--kv-tier needs prefix caching; drop --no-enable-prefix-caching")


def _has_lmcache() -> bool:
    return importlib.util.find_spec("lmcache") is not None


def _tier(text: str) -> str | int:
    if text in (OFF, AUTO):
        return text
    try:
        size_bytes = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"auto, off, or a size: {error}") from error
    if size_bytes < MIN_TIER_BYTES:
        raise argparse.ArgumentTypeError(f"at least {MIN_TIER_BYTES >> 20}M, found {text}")
    return size_bytes
