"""Messages between the harness and its workers: JSON objects, and nothing pickled.

A worker runs code that nobody has read, so that the harness must be able to receive anything.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from typing import Final, TypeAlias

__all__ = ["Broken", "Channel", "Message", "sockets"]

Message: TypeAlias = dict[str, object]
"""The fields of a message: plain data for JSON."""

_LARGEST: Final = 1 << 17
"""The largest message in bytes."""
_EAGER: Final = 2e-3
"""Seconds for which a message is looked for without a break."""


class Broken(Exception):
    """The other side closed the channel, or sent something else than a message."""


def sockets() -> tuple[socket.socket, socket.socket]:
    """Return a pair of sockets that keep messages apart; the first one never waits."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


class Channel:
    """One side of a pair of sockets."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, fields: Message, files: Sequence[int] = ()) -> None:
        """Send a message with descriptors of open files. Raises Broken if it is not taken."""
        try:
            socket.send_fds(self._socket, [json.dumps(fields).encode()], files)
        except OSError as error:
            raise Broken(str(error)) from None

    def receive(self) -> tuple[Message, list[int]]:
        """Wait for a message, and return it with its descriptors.

        Raises Broken if the other side is gone.
        """
        text, files, *_ = socket.recv_fds(self._socket, _LARGEST, 8)
        return _parsed(text), files

    def poll(self) -> Message | None:
        """Return a message that is there already, if there is one.

        Raises Broken if the other side is gone, or sent something else than a message.
        """
        try:
            return _parsed(self._socket.recv(_LARGEST))
        except BlockingIOError:
            return None
        except OSError as error:
            raise Broken(str(error)) from None

    def awaited(self, seconds: float) -> Message:
        """Return the next message, at most a hundredth later than it is there.

        Raises TimeoutError after some seconds, and Broken if the other side is gone, or sends
        something else than a message.
        """
        start = time.perf_counter()
        while True:
            found = self.poll()
            if found is not None:
                return found
            passed = time.perf_counter() - start
            if passed > seconds:
                raise TimeoutError
            if passed > _EAGER:
                time.sleep(min(passed / 100, 0.05))

    def close(self) -> None:
        """Close this side in this process."""
        self._socket.close()


def _parsed(text: bytes) -> Message:
    if not text:
        raise Broken("the other side is closed")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Broken(f"a message that cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise Broken("a message that is no object")
    return found
