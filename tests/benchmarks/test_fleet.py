"""How sessions are divided between servers, and the proxy of a distant Redis."""

from __future__ import annotations

import socket
import threading

import numpy as np

from benchmarks.fleet import distant, divided
from ngramspec.measure.traces import Trace


def test_sessions_go_to_the_servers_in_turn():
    ids = np.zeros(1, np.int32)
    turns = [
        Trace("g", f"{name}{turn}", ids, ids, session=name) for name in "abc" for turn in range(2)
    ]
    schedule = [(server, trace.id) for server, trace in divided(turns)]
    expected = [(0, "a0"), (1, "b0"), (0, "a1"), (1, "b1"), (0, "c0"), (0, "c1")]
    assert schedule == expected


def test_the_proxy_passes_bytes_on_in_both_directions():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(100).upper())

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            distant(server.getsockname()[1], 0.0) as port,
            socket.create_connection(("127.0.0.1", port)) as client,
        ):
            client.sendall(b"text")
            assert client.recv(100) == b"TEXT"
        thread.join()
