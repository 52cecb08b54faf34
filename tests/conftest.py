"""Fixtures that several test folders share."""

import shutil
from collections.abc import Iterator

import pytest
from seaweed import running_s3_server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A real S3 server; the environment variables that reach it. Ends with the session."""
    directory = tmp_path_factory.mktemp("seaweedfs")
    with running_s3_server(directory) as environment:
        yield environment
    shutil.rmtree(directory, ignore_errors=True)
