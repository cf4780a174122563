"""A proxy that breaks streams."""

import contextlib
import socket
import threading
import urllib.parse


class Cutter:
    """Breaks each event stream after `max_bytes` bytes. Other calls pass unchanged."""

    def __init__(self, url: str, max_bytes: int) -> None:
        address = urllib.parse.urlsplit(url)
        self._far, self._max_bytes = (address.hostname or "", address.port or 0), max_bytes
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Cutter":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._far) as far, contextlib.suppress(OSError):
            threading.Thread(target=_pump, args=(near, far), daemon=True).start()
            passed, is_stream = 0, False
            while data := far.recv(4096):
                is_stream = is_stream or b"text/event-stream" in data
                if is_stream and passed + len(data) > self._max_bytes:
                    near.sendall(data[: self._max_bytes - passed])
                    self.cuts += 1
                    break
                passed += len(data)
                near.sendall(data)
            near.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
