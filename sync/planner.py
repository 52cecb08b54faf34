"""The planner process: fetch, decode and map a chain, and hand each rank its changes. CUDA-free, owns no weights.

One a node, a child of the API process. Commands come as JSON lines on standard input, events go out as JSON lines on
standard output, elements go to the workers over a channel (`sync.channel`). It ends when its input ends.

Command `{"command": "plan", "serving": N, "target": M}`; events `resolved`, `progress`, then `planned` or `failed`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from sync.channel import Channel, ChannelClosed, accept, listen
from sync.errors import PublicationError, StoreError
from sync.layout import LayoutError, LayoutMap
from sync.mapping import Router
from sync.plan import Planner
from sync.stores import open_store

logger = logging.getLogger("rollout.planner")
NICENESS = 5
# A worker that does not take its share for this long is gone or stuck.
WORKER_TIMEOUT_S = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="rollout-serve's planner process (started by the server).")
    parser.add_argument("--store", required=True)
    parser.add_argument("--address", required=True, help="abstract socket address that workers connect to")
    parser.add_argument("--layouts-fd", type=int, required=True, help="descriptor of the ranks' layout maps")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s planner: %(message)s")
    os.nice(NICENESS)
    # An interrupt from the terminal goes to the server, which stops the planner in its turn. Not a session of its own:
    # Linux gives each session an equal share (autogroup), whatever the planner's niceness. Done here since uvloop's
    # subprocesses know no `process_group`.
    os.setpgid(0, 0)
    layouts = read_layouts(options.layouts_fd)
    router = Router(layouts)
    planner = Planner(open_store(options.store), router, options.threads)
    with listen(options.address) as server:
        server.settimeout(WORKER_TIMEOUT_S)
        _emit({"event": "ready"})
        for line in sys.stdin:
            command = json.loads(line)
            _serve(planner, server, len(layouts), command["serving"], command["target"])
    return 0


def write_layouts(layouts: Sequence[LayoutMap]) -> int:
    """A memfd with the maps of all ranks, for a planner to inherit. The caller owns the descriptor."""
    descriptor = os.memfd_create("rollout-layouts", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as sink:
        for layout in layouts:
            data = layout.to_ipc()
            sink.write(len(data).to_bytes(8, "little") + data)
    return descriptor


def read_layouts(descriptor: int) -> list[LayoutMap]:
    """Reads what `write_layouts` wrote; the descriptor may be read again by another planner."""
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    layouts, position = [], 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 8], "little")
        layouts.append(LayoutMap.from_ipc(data[position + 8 : position + 8 + size]))
        position += 8 + size
    return layouts


def _serve(planner: Planner, server: socket.socket, ranks: int, serving: int, target: int) -> None:
    """Plans one version. Every failure becomes one `failed` event, and the ranks are told to drop their share."""
    channels: dict[int, Channel] = {}
    try:
        channels = _accept_ranks(server, ranks, target)
        _emit(planner.plan(serving, target, channels, _emit))
    except (PublicationError, StoreError, LayoutError, ChannelClosed, OSError) as error:
        _abort(channels, str(error))
        _emit(_failure(error))
    except Exception as error:
        logger.exception("planning version %d failed unexpectedly", target)
        _abort(channels, str(error))
        _emit(_failure(error))
    finally:
        for channel in channels.values():
            channel.close()


def _accept_ranks(server: socket.socket, ranks: int, target: int) -> dict[int, Channel]:
    """One channel a rank. A connection left over from an attempt that was given up is closed."""
    channels: dict[int, Channel] = {}
    while len(channels) < ranks:
        channel = accept(server)
        channel.set_timeout(WORKER_TIMEOUT_S)
        try:
            message, _ = channel.receive()
        except ChannelClosed:
            continue
        if message.get("kind") == "rank" and message["version"] == target:
            channels[int(message["rank"])] = channel
        else:
            channel.close()
    return channels


def _abort(channels: dict[int, Channel], reason: str) -> None:
    for rank, channel in channels.items():
        try:
            channel.send({"kind": "abort", "reason": reason[:4096]})
        except (ChannelClosed, OSError) as error:
            logger.warning("rank %d went away before it could be told: %s", rank, error)


def _failure(error: Exception) -> dict[str, Any]:
    described: dict[str, Any] = {"event": "failed", "kind": type(error).__name__, "message": str(error)}
    if isinstance(error, PublicationError):
        described |= {
            "rejection": error.rejection.value,
            "detail": error.detail,
            "version": error.version,
            "file": error.file,
            "tensor": error.tensor,
        }
    return described


def _emit(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
