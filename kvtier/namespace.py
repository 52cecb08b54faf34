"""KV namespaces: which KV-cache entries a request may reuse.

The namespace is part of the hash of every KV block through vLLM's `cache_salt`, so an entry of another namespace can
never be hit: not in GPU memory, not in a host tier, not even one that is stored late. Clearing only reclaims space.
Pure functions; the API process, the engine core and the LMCache server use them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum, unique

_SEPARATOR = "."
_PREFIX = "policy-"
# A caller's salt is hashed: it may be long, and host tiers forbid some characters.
_CALLER_DIGEST_BYTES = 16


@unique
class OnUpdate(Enum):
    """What happens to requests and their KV at a policy change (`--kv-on-update`)."""

    KEEP = "keep"
    """Running requests go on with their KV under the new weights; new ones get a new namespace."""
    RECOMPUTE = "recompute"
    """Running requests are preempted and prefilled again by the new weights, in the new namespace."""
    ABORT = "abort"
    """Running requests finish with `abort`; new ones get a new namespace."""
    SHARE = "share"
    """As keep, but the namespace stays while it is at most `max_lag` versions old."""


@dataclass(frozen=True)
class KvPolicy:
    """What one update does to KV. `max_lag` (versions, >= 1) belongs to `share`."""

    on_update: OnUpdate = OnUpdate.KEEP
    max_lag: int = 0

    def __post_init__(self) -> None:
        if self.on_update is OnUpdate.SHARE and self.max_lag < 1:
            raise ValueError(f"share needs a max lag of at least 1 version, found {self.max_lag}")
        if self.on_update is not OnUpdate.SHARE and self.max_lag:
            raise ValueError(f"a max lag belongs to share, not to {self.on_update.value}")


@dataclass(frozen=True)
class Namespace:
    """The KV that requests may share: opened by policy `version`, the `opening`-th of this engine.

    The opening counts because a version may be served twice (a rollback and back), and requests that straddled the
    change in between have stored KV of other weights under the first opening.
    """

    version: int
    opening: int = 0

    @property
    def name(self) -> str:
        return f"{_PREFIX}{self.version}-{self.opening}"

    def after(self, version: int, policy: KvPolicy) -> Namespace:
        """The namespace of new requests once `version` is served.

        `share` keeps this one while every entry in it is at most `max_lag` versions old. Age counts from the version
        that opened the namespace, since later entries were computed on top of earlier ones.
        """
        lag = version - self.version
        if policy.on_update is OnUpdate.SHARE and 0 <= lag <= policy.max_lag:
            return self
        return Namespace(version, self.opening + 1)


def namespace_salt(namespace: str, caller_salt: str | None) -> str:
    """The `cache_salt` of a request in `namespace`, combined with the salt the caller gave."""
    if not caller_salt:
        return namespace
    digest = hashlib.blake2b(caller_salt.encode(), digest_size=_CALLER_DIGEST_BYTES).hexdigest()
    return f"{namespace}{_SEPARATOR}{digest}"


def move_salt(salt: str, namespace: str) -> str:
    """The same caller's salt in another namespace."""
    _, separator, caller = salt.partition(_SEPARATOR)
    return f"{namespace}{separator}{caller}"


def namespace_of(salt: str) -> str:
    """The namespace that a `cache_salt` belongs to."""
    return salt.partition(_SEPARATOR)[0]


def is_policy_namespace(namespace: str) -> bool:
    """False for namespaces that no policy version owns (the canary's)."""
    return namespace.startswith(_PREFIX)


def version_of(namespace: str) -> int | None:
    """The policy version that opened a namespace; None for one that no policy owns."""
    if not is_policy_namespace(namespace):
        return None
    return int(namespace.removeprefix(_PREFIX).partition("-")[0])
