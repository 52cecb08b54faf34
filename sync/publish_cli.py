"""`rollout-publish`: publish and inspect policy versions from a shell."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sync.chain_report import VersionReport, report_chain
from sync.errors import PublicationError, Rejection, StoreError
from sync.format import read_manifest
from sync.named_tensors import named_tensors
from sync.parent_check import require_parent
from sync.publication import Published, PublishOptions, move_pointer, newest_version, write_anchor, write_delta
from sync.publication_check import check_version
from sync.stores import Store, open_store
from sync.types import ChecksumFormat, DeltaEncoding

_DESCRIPTION = """\
Publish policy versions for rollout-serve, and look at what is published.

A policy store is a directory or an S3 prefix. It holds versions (weight_v000000, weight_v000001, ...) and a
pointer, `latest`, that servers follow. A version is an anchor (a whole checkpoint) or a delta (what changed
since its base version; usually some tenths of a percent).
"""

_EPILOG = """\
examples:
  rollout-publish anchor /srv/policies ./checkpoint-0          # version 0: a whole checkpoint
  rollout-publish delta  /srv/policies ./checkpoint-0 ./checkpoint-1
  rollout-publish delta  s3://bucket/run-1 ./step-100 ./step-110 --checksum xxh3-128
  rollout-publish show   s3://bucket/run-1                     # the chain that leads to the latest version
  rollout-publish verify /srv/policies 1 --parent ./checkpoint-0

S3 takes endpoint, region and keys from the environment: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY (or ~/.aws). Trainers in Python use sync.publisher.Publisher, which keeps the parent.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for a failure (one line on standard error), 130 for Ctrl-C."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        store = open_store(arguments.store)
        try:
            arguments.run(store, arguments)
        finally:
            store.close()
    except (PublicationError, StoreError, ValueError, OSError) as error:
        print(f"rollout-publish: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rollout-publish: interrupted; a version without its index is not published", file=sys.stderr)
        return 130
    return 0


def _anchor(store: Store, arguments: argparse.Namespace) -> None:
    newest = newest_version(store)
    version = arguments.version
    if version is None:
        version = 0 if newest is None else newest + 1
    directory = Path(arguments.checkpoint)
    tensors = named_tensors(directory)
    published = write_anchor(store, tensors, version, _options(arguments), beside=directory)
    move_pointer(store, version)
    _print_published(published, arguments)


def _delta(store: Store, arguments: argparse.Namespace) -> None:
    base_version = newest_version(store) or 0
    parent, new = named_tensors(arguments.parent), named_tensors(arguments.new)
    checked = require_parent(parent, store, base_version, threads=arguments.threads)
    if checked < len(parent):
        print(
            f"rollout-publish: {len(parent) - checked} of {len(parent)} tensors of {arguments.parent} are taken "
            f"on trust: the store has no checksum of them as of version {base_version}",
            file=sys.stderr,
        )
    published, _ = write_delta(store, parent, new, base_version + 1, base_version, _options(arguments))
    move_pointer(store, published.version)
    _print_published(published, arguments)


def _show(store: Store, arguments: argparse.Namespace) -> None:
    version = _version(store, arguments)
    report = report_chain(store, version)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(entry) for entry in report], indent=1))
        return
    table = Table(title=f"{store.url}: the chain to version {version}")
    for name in ("version", "kind", "base", "encoding", "checksum", "tensors", "files", "MiB", "density"):
        table.add_column(name, justify="left" if name in ("kind", "encoding", "checksum") else "right")
    for entry in report:
        table.add_row(*_row(entry))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _verify(store: Store, arguments: argparse.Namespace) -> None:
    version = _version(store, arguments)
    parent = None if arguments.parent is None else named_tensors(arguments.parent)
    progress = False if arguments.quiet else None
    check = check_version(store, version, parent=parent, threads=arguments.threads, progress=progress)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(check)))
        return
    against = "" if check.base_version is None else f" against version {check.base_version}"
    print(
        f"version {check.version}: {check.kind}{against}, {check.tensors} tensors in {check.files} files, "
        f"{_mebibytes(check.file_bytes)} MiB read, {_mebibytes(check.decoded_bytes)} MiB decoded, "
        f"{check.checksums_verified} checksums of new bytes verified: good"
    )


def _version(store: Store, arguments: argparse.Namespace) -> int:
    version: int | None = arguments.version if arguments.version is not None else store.latest()
    if version is None:
        raise PublicationError(Rejection.INDEX_MISSING, f"nothing is published in {store.url} yet")
    read_manifest(store, version)
    return version


def _options(arguments: argparse.Namespace) -> PublishOptions:
    return PublishOptions(
        encoding=DeltaEncoding(getattr(arguments, "encoding", DeltaEncoding.XOR.value)),
        checksum_format=ChecksumFormat(arguments.checksum),
        level=getattr(arguments, "level", PublishOptions.level),
        shard_bytes=arguments.shard_mib << 20,
        threads=arguments.threads,
        progress=False if arguments.quiet else None,
    )


def _print_published(published: Published, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps({**dataclasses.asdict(published), "density": published.density}))
        return
    changed = (
        "anchor"
        if published.base_version is None
        else f"delta against version {published.base_version}, {published.changed_elements} of "
        f"{published.total_elements} elements changed ({100 * published.density:.3f}%)"
    )
    print(
        f"version {published.version}: {changed}, {_mebibytes(published.payload_bytes)} MiB, {published.seconds:.2f} s"
    )


def _row(entry: VersionReport) -> tuple[str, ...]:
    return (
        str(entry.version),
        entry.kind,
        "" if entry.base_version is None else str(entry.base_version),
        entry.encoding or "",
        entry.checksum_format,
        str(entry.tensors),
        str(entry.files),
        _mebibytes(entry.file_bytes),
        "" if entry.density is None else f"{100 * entry.density:.3f}%",
    )


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollout-publish",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    anchor = _command(commands, "anchor", _anchor, "publish a whole checkpoint")
    anchor.add_argument(
        "checkpoint",
        metavar="CHECKPOINT_DIR",
        help="Hugging Face checkpoint directory (safetensors); config and tokenizer come along",
    )
    anchor.add_argument(
        "--version", type=_count, metavar="N", help="default: 0 in an empty store, else one above the latest"
    )
    _add_writing_options(anchor)

    delta = _command(commands, "delta", _delta, "publish what changed since the latest version")
    delta.add_argument(
        "parent",
        metavar="PARENT_DIR",
        help="checkpoint of the store's latest version (checked against its published checksums); in an empty "
        "store, the checkpoint that servers were started with, version 0",
    )
    delta.add_argument("new", metavar="NEW_DIR", help="checkpoint of the version to publish")
    delta.add_argument(
        "--encoding",
        choices=[encoding.value for encoding in DeltaEncoding],
        default=DeltaEncoding.XOR.value,
        help="default: %(default)s",
    )
    delta.add_argument(
        "--level",
        type=_count,
        default=PublishOptions.level,
        metavar="1..22",
        help="zstd level; default: %(default)s, tuned for sparse changes",
    )
    _add_writing_options(delta)

    show = _command(commands, "show", _show, "list the chain that leads to a version")
    _add_version(show)

    verify = _command(commands, "verify", _verify, "read a version completely and check it")
    _add_version(verify)
    verify.add_argument(
        "--parent",
        metavar="DIR",
        help="checkpoint of the delta's base version: apply the delta to it in memory, and check the new bytes",
    )
    _add_running_options(verify)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: object,
    summary: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.add_argument("store", metavar="STORE", help="a path, file:///path or s3://bucket/prefix")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)
    return parser


def _add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", metavar="VERSION", type=_count, nargs="?", help="default: the latest")


def _add_writing_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checksum",
        choices=[checksum_format.value for checksum_format in ChecksumFormat],
        default=ChecksumFormat.ADLER32.value,
        help="default: %(default)s, which servers check in time proportional to the change",
    )
    parser.add_argument(
        "--shard-mib", type=_positive, default=2048, metavar="MIB", help="size of a file; default: %(default)s"
    )
    _add_running_options(parser)


def _add_running_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=_positive, metavar="N", help="default: one a usable CPU, at most 32")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer >= 0, found {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if (number := _count(text)) < 1:
        raise argparse.ArgumentTypeError("expected an integer >= 1, found 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
