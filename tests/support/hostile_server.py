"""A server on loopback that answers whatever bytes a test gives, and as slowly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.waiting import WAIT_S

OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"Content-Length: 2\r\n\r\n{}"


@contextmanager
def answering(*answers: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of a server that gives each request of one connection the next of these answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):  # the client has gone, as it should
                connection, _ = listener.accept()
                with connection:
                    for answer in answers:
                        request = b""
                        while b"\r\n\r\n" not in request:  # a body may come with the headers, or after them
                            received = connection.recv(65_536)
                            if not received:
                                return  # on a busy machine the client may give up before it is read
                            request += received
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT_S)


def drip(begin: bytes, each: bytes) -> Callable[[socket.socket], object]:
    """Send ``begin``, then ``each`` again and again, slower than any limit of size notices, until the client goes."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(begin)
        gone = threading.Event()
        while True:
            connection.sendall(each)
            gone.wait(0.005)

    return answer
