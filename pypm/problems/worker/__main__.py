"""Run one version of a computation: `python -m pypm.problems.worker DESCRIPTOR`.

The descriptor is that of a socket, over which the harness sends requests. Nothing in this process
is believed: the harness owns the inputs, the clock and the outputs.
"""

import os
import socket
import sys
from contextlib import suppress

from pypm.problems.channel import Broken, Channel
from pypm.problems.worker.session import Session


def main() -> None:
    """Answer requests until the harness closes the socket."""
    connection = Channel(socket.socket(fileno=int(sys.argv[1])))
    os.register_at_fork(after_in_child=connection.close)  # forks of a solution cannot answer
    work = Session()
    with suppress(Broken, OSError):
        connection.send({})
        while True:
            connection.send(work.answer(*connection.receive()))


if __name__ == "__main__":
    main()
