"""The evaluate command of an outside program, of the standard library alone: a copy of this file
asks the controller over a socket, prints its answer, and ends with 0 if the candidate was accepted,
1 if it was not, and 2 if nothing was judged.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Ask, and print the answer."""
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect("socket")
            connection.sendall(b"evaluate\n")
            text = b"".join(iter(lambda: connection.recv(65536), b""))
            answer = json.loads(text)
        except (OSError, ValueError) as error:
            print(json.dumps({"error": f"the controller does not answer: {error}"}))
            return 2
    print(json.dumps(answer, indent=2))
    return 2 if "error" in answer else 0 if answer["is_accepted"] else 1


if __name__ == "__main__":
    sys.exit(main())
