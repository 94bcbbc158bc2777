"""Run one version of a computation: `python -m pypm.tools.problems.worker DESCRIPTOR`.

The descriptor is that of a socket, over which the harness sends requests.
"""

import os
import socket
import sys
from contextlib import suppress

from pypm.tools.problems import channel
from pypm.tools.problems.channel import Broken, Channel
from pypm.tools.problems.worker import calls, inputs, integrity, session, versions

MODULES = (channel, calls, inputs, integrity, session, versions)


def main() -> None:
    """Answer requests until the harness closes the socket."""
    connection = Channel(socket.socket(fileno=int(sys.argv[1])))
    os.register_at_fork(after_in_child=connection.close)  # forks of a solution cannot answer
    work = session.Session(integrity.Snapshot(MODULES))
    with suppress(Broken):
        connection.send({})
        while True:
            fields, blocks = work.answer(dict(connection.receive().fields))
            connection.send(fields, blocks)
            work.settle()


if __name__ == "__main__":
    main()
