"""`python -m decodewatch.collector.tether PARENT COMMAND...`: a command that ends with its parent.

A supervisor that is killed outright cannot stop its children. The kernel can: this asks it to send
SIGTERM when the parent is gone, and then becomes the command. A program of its own, because Python
must not be run between fork and exec in a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the command in the arguments."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
            sys.exit(f"tether: prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):
        sys.exit("tether: the parent has gone")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"tether: {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
