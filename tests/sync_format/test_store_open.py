"""Which URL opens which store, and what a user is told otherwise."""

import pytest

from sync.errors import StoreError
from sync.stores import open_store


def test_plain_path_and_file_url_open_the_same_directory(tmp_path):
    open_store(str(tmp_path / "a b")).publish(3)
    assert open_store(f"file://{tmp_path}/a%20b").latest() == 3


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "a path, file:///path or s3://bucket/prefix"),
        ("gs://bucket/x", "unknown policy store scheme 'gs'"),
        ("s3:///x", "s3://bucket/prefix"),
        ("file://host/x", "file:///path"),
        ("s3://key:secret@bucket/x", "AWS_"),
    ],
)
def test_bad_url_says_what_is_expected(url, told):
    with pytest.raises(ValueError, match=told) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


def test_unwritable_place_is_a_store_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreError, match=str(tmp_path)):
        open_store(str(tmp_path / "file")).publish(1)


def test_missing_bucket_is_a_store_error(s3_place):
    with pytest.raises(StoreError, match="no-such-bucket"):
        open_store("s3://no-such-bucket/x").latest()


def test_wrong_key_is_a_store_error_without_the_key(s3_place, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    with pytest.raises(StoreError) as raised:
        open_store(s3_place.store.url).latest()
    assert "a-wrong-secret" not in str(raised.value)


def test_unreachable_endpoint_is_a_store_error(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9"):
        open_store("s3://policies/x").latest()
