"""Messages between the planner and the workers of one node, with file descriptors attached.

A Unix seqpacket socket in the abstract namespace: message boundaries are kept, descriptors travel with a message,
and nothing is left in any file system. Only processes of the same user are let in (SO_PEERCRED).
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from typing import Any

MAX_MESSAGE_BYTES = 64 << 10
Message = dict[str, Any]


class ChannelClosed(ConnectionError):
    """The other side went away."""


class Channel:
    """One connected end. Not safe for several threads at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Sends one message, with at most one descriptor, of which the receiver gets its own copy."""
        data = json.dumps(message).encode()
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"message of {len(data)} bytes; the limit is {MAX_MESSAGE_BYTES}")
        try:
            socket.send_fds(self._socket, [data], [] if descriptor is None else [descriptor])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed("the other side closed the channel") from error

    def receive(self) -> tuple[Message, int | None]:
        """Waits for a message. The caller owns the descriptor. Raises ChannelClosed at the end."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE_BYTES, 1)
        except ConnectionResetError as error:
            raise ChannelClosed("the other side closed the channel") from error
        if not data:
            raise ChannelClosed("the other side closed the channel")
        if descriptors:
            os.set_inheritable(descriptors[0], False)
        return json.loads(data), descriptors[0] if descriptors else None

    def set_timeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()


def new_address() -> str:
    """A fresh abstract address, without the leading NUL, as it is passed to other processes."""
    return f"rollout-serve-{os.getpid()}-{secrets.token_hex(8)}"


def listen(address: str) -> socket.socket:
    """A listening socket at an abstract address."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    server.bind(f"\0{address}")
    server.listen()
    return server


def accept(server: socket.socket) -> Channel:
    """Waits for a peer of the same user; others are turned away."""
    while True:
        connection, _ = server.accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, user, _ = struct.unpack("3i", credentials)
        if user == os.getuid():
            return Channel(connection)
        connection.close()


def connect(address: str) -> Channel:
    """Connects to a listening peer on this node."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    connection.connect(f"\0{address}")
    return Channel(connection)
