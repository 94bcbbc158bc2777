"""Messages between the harness and its workers: a JSON object with bytes, and nothing pickled.

A worker runs code that nobody has read, so that the harness must be able to receive anything.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Broken", "Channel", "Message"]

_LENGTH: Final = struct.Struct(">Q")
_HEADER: Final = 1 << 24
"""The largest JSON text in bytes."""


class Broken(Exception):
    """The other side closed the channel, or sent something else than a message."""


@dataclass(frozen=True, slots=True)
class Message:
    """An object, and memory blocks that belong to it."""

    fields: Mapping[str, object]
    blocks: Sequence[bytearray] = ()


class Channel:
    """One side of a pair of sockets."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(
        self,
        fields: Mapping[str, object],
        blocks: Sequence[bytes] = (),
        seconds: float | None = None,
    ) -> None:
        """Send a message. Raises Broken if the other side is gone, TimeoutError after `seconds`."""
        text = json.dumps({**fields, "blocks": [*map(len, blocks)]}).encode()
        self._socket.settimeout(seconds)
        try:
            for part in (_LENGTH.pack(len(text)), text, *blocks):
                self._socket.sendall(part)
        except TimeoutError:
            raise
        except OSError as error:
            raise Broken(str(error)) from None

    def receive(self, seconds: float | None = None, most: int = 0) -> Message:
        """Return the next message.

        Arguments:
            seconds: the time after which TimeoutError is raised.
            most: the largest number of bytes of all blocks together.

        Raises Broken if the other side is gone, or sends something else than a message.
        """
        end = None if seconds is None else time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, end))
        if length > _HEADER:
            raise Broken(f"a message of {length} bytes")
        try:
            fields = json.loads(self._read(length, end))
            sizes = [int(size) for size in fields.pop("blocks")]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Broken(f"a message that cannot be read: {error}") from None
        if min(sizes, default=0) < 0 or sum(sizes) > most:
            raise Broken(f"a message with {sum(sizes)} bytes where {most} were expected")
        return Message(fields, [self._read(size, end) for size in sizes])

    def close(self) -> None:
        """Close this side in this process."""
        self._socket.close()

    def _read(self, size: int, end: float | None) -> bytearray:
        found = bytearray(size)
        view = memoryview(found)
        while view:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            try:
                self._socket.settimeout(left)
                count = self._socket.recv_into(view)
            except TimeoutError:
                raise
            except OSError as error:
                raise Broken(str(error)) from None
            if not count:
                raise Broken("the other side is closed")
            view = view[count:]
        return found
