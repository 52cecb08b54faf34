"""KV namespaces: which KV-cache entries a policy version may reuse.

The namespace is part of the hash of every KV block through vLLM's `cache_salt`, so an entry of another version can
never be hit: not in GPU memory, not in a host tier, not even one that is stored late. Clearing only reclaims space.
Pure functions; both the API process and the engine core use them.
"""

from __future__ import annotations

import hashlib

_SEPARATOR = "."
# A caller's salt is hashed: it may be long, and host tiers forbid some characters.
_CALLER_DIGEST_BYTES = 16


def namespace_salt(version: int, caller_salt: str | None) -> str:
    """The `cache_salt` of a request that starts under `version`, combined with the salt the caller gave."""
    prefix = f"policy-{version}"
    if not caller_salt:
        return prefix
    digest = hashlib.blake2b(caller_salt.encode(), digest_size=_CALLER_DIGEST_BYTES).hexdigest()
    return f"{prefix}{_SEPARATOR}{digest}"


def move_salt(salt: str, version: int) -> str:
    """The same caller's salt in the namespace of another version."""
    _, separator, caller = salt.partition(_SEPARATOR)
    return f"policy-{version}{separator}{caller}"
