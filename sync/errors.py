"""Two exceptions, named by who recovers.

`PublicationError`: what is published is wrong or incomplete. Retrying cannot help; the trainer must publish
the version (or an anchor) again. `StoreError`: the store could not be reached or refused; a retry or the
operator helps, the publication itself may be fine.
"""

from __future__ import annotations

from enum import Enum, unique


@unique
class Rejection(Enum):
    """Why a publication is refused. The value is a stable label for logs and metrics."""

    BAD_POINTER = "bad_pointer"
    INDEX_MISSING = "index_missing"
    INDEX_TOO_LARGE = "index_too_large"
    BAD_INDEX = "bad_index"
    UNKNOWN_DELTA_ENCODING = "unknown_delta_encoding"
    UNKNOWN_COMPRESSION_FORMAT = "unknown_compression_format"
    UNKNOWN_CHECKSUM_FORMAT = "unknown_checksum_format"
    UNKNOWN_DIGEST_FORMAT = "unknown_digest_format"
    VERSION_MISMATCH = "version_mismatch"
    CHAIN_GAP = "chain_gap"
    PATH_LEAVES_DIRECTORY = "path_leaves_directory"
    FILE_MISSING = "file_missing"
    FILE_TRUNCATED = "file_truncated"
    FILE_TOO_LARGE = "file_too_large"
    PAYLOAD_DIGEST_MISMATCH = "payload_digest_mismatch"
    BAD_HEADER = "bad_header"
    BAD_OFFSETS = "bad_offsets"
    TENSOR_MISSING = "tensor_missing"
    UNEXPECTED_TENSOR = "unexpected_tensor"
    NOT_A_PAYLOAD = "not_a_payload"
    CHECKSUM_MISSING = "checksum_missing"
    BAD_CHECKSUM_TEXT = "bad_checksum_text"
    BAD_FRAME = "bad_frame"
    NEEDS_DICTIONARY = "needs_dictionary"
    WINDOW_TOO_LARGE = "window_too_large"
    TRAILING_BYTES = "trailing_bytes"
    WRONG_LENGTH = "wrong_length"
    BAD_OVERWRITE = "bad_overwrite"
    UNKNOWN_TENSOR = "unknown_tensor"
    WRONG_PARENT = "wrong_parent"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    ALREADY_PUBLISHED = "already_published"


class PublicationError(Exception):
    """The trainer must publish again. Carries where: version, file and tensor, as far as known.

    The message is one line: the place, then what was expected and what was found, in numbers.
    """

    def __init__(
        self,
        rejection: Rejection,
        detail: str,
        *,
        version: int | None = None,
        file: str | None = None,
        tensor: str | None = None,
    ) -> None:
        self.rejection = rejection
        self.detail = detail
        self.version = version
        self.file = file
        self.tensor = tensor
        super().__init__(_located(detail, version=version, file=file, tensor=tensor))

    def __reduce__(self) -> tuple[object, ...]:
        # Pickled across the planner's process border: keyword-only arguments need their own way back.
        return _rebuild, (self.rejection, self.detail, self.version, self.file, self.tensor)

    def at(self, *, version: int | None = None, file: str | None = None, tensor: str | None = None) -> PublicationError:
        """The same error with the place filled in where it was not known yet."""
        return PublicationError(
            self.rejection,
            self.detail,
            version=self.version if self.version is not None else version,
            file=self.file or file,
            tensor=self.tensor or tensor,
        )


class StoreError(Exception):
    """The store failed: transient, or for the operator (address, permission, bucket). Never names a key."""


def printable(name: str) -> str:
    """A published name as it may stand in a log line: control characters escaped, and not endless."""
    shown = name if name.isprintable() else ascii(name)
    return shown if len(shown) <= 300 else f"{shown[:300]}..."


def _rebuild(
    rejection: Rejection, detail: str, version: int | None, file: str | None, tensor: str | None
) -> PublicationError:
    return PublicationError(rejection, detail, version=version, file=file, tensor=tensor)


def _located(detail: str, *, version: int | None, file: str | None, tensor: str | None) -> str:
    place = [
        *([f"version {version}"] if version is not None else []),
        *([f"file {printable(file)}"] if file else []),
        *([f"tensor {printable(tensor)}"] if tensor else []),
    ]
    return f"{', '.join(place)}: {detail}" if place else detail
