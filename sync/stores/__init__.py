"""Where policy versions live: a local directory or an S3 bucket, behind one port.

`open_store(url)` picks the implementation.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from sync.stores.base import Store
from sync.stores.local import LocalStore

__all__ = ["Store", "open_store"]


def open_store(url: str) -> Store:
    """A store by its URL: `s3://bucket/prefix`, `file:///path`, or a plain path.

    A local directory need not exist yet: it reads as empty and is made by the first write. For S3, endpoint,
    region and keys come from the ordinary AWS environment (`AWS_ENDPOINT_URL`, `AWS_REGION`,
    `AWS_ACCESS_KEY_ID`, ..., `~/.aws`). Raises `ValueError` for any other scheme or a URL without a place.
    """
    if "://" not in url:
        if not url:
            raise ValueError("a policy store needs a place: a path, file:///path or s3://bucket/prefix")
        return LocalStore(url)
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.username or parts.password:
        raise ValueError(
            "a policy store's URL is only scheme, place and path; keys and endpoint belong in the AWS_* "
            "environment variables"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ValueError(f"a file URL names a local path: file:///path, not {url!r}")
        return LocalStore(unquote(parts.path))
    if parts.scheme == "s3":
        if not parts.netloc:
            raise ValueError(f"an S3 URL names a bucket: s3://bucket/prefix, not {url!r}")
        from sync.stores.s3 import S3Store  # boto3 takes a while to import; a local store needs none of it

        return S3Store(parts.netloc, parts.path)
    raise ValueError(f"unknown policy store scheme {parts.scheme!r}: use a path, file:///path or s3://bucket/prefix")
