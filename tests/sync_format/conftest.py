"""A store to publish into, once as a local directory and once in a real S3 server (SeaweedFS)."""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from seaweed import BUCKET, s3_client

from sync.stores import Store, open_store


class RawObjects(Protocol):
    """The store's bytes, reached past `sync.stores`: what another program would put there."""

    def put(self, key: str, data: bytes) -> None: ...

    def get(self, key: str) -> bytes: ...

    def delete(self, key: str) -> None: ...


@dataclass
class RawDirectory:
    root: Path

    def put(self, key: str, data: bytes) -> None:
        (self.root / key).parent.mkdir(parents=True, exist_ok=True)
        (self.root / key).write_bytes(data)

    def get(self, key: str) -> bytes:
        return (self.root / key).read_bytes()

    def delete(self, key: str) -> None:
        (self.root / key).unlink()


@dataclass
class RawBucket:
    client: object
    prefix: str

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}", Body=data)

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}")["Body"].read()

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}")


@dataclass
class Place:
    """A store under test, and its bytes."""

    store: Store
    raw: RawObjects

    def put_all(self, files: Mapping[str, bytes]) -> None:
        for key, data in files.items():
            self.raw.put(key, data)


@pytest.fixture
def local_place(tmp_path: Path) -> Iterator[Place]:
    store = open_store(str(tmp_path / "store"))
    yield Place(store, RawDirectory(tmp_path / "store"))
    store.close()


@pytest.fixture
def s3_place(s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name, value in s3_server.items():
        monkeypatch.setenv(name, value)
    prefix = f"run-{secrets.token_hex(6)}"
    store = open_store(f"s3://{BUCKET}/{prefix}")
    yield Place(store, RawBucket(s3_client(s3_server), prefix))
    store.close()


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    """The same test body runs on both kinds of store."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found
