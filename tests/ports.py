"""Where ranks of a test meet."""

import contextlib
import socket


@contextlib.contextmanager
def reserved_port():
    """A port of the loopback interface that nobody else is given meanwhile: with SO_REUSEADDR, which LibTorch's store sets too, it can listen there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
