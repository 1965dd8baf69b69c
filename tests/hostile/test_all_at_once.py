# SPDX-License-Identifier: Apache-2.0
"""All that callers without a token can try, at once, beside a client that has one."""

import sys
import time

import numpy as np
import pytest

import reverb
from support.certificates import TokensFile
from support.good_client import GoodClient
from support.programs import Program, resident_bytes
from support.waiting import PATIENCE

MIB = 2**20

SERVER = """
    import sys
    import reverb
    from reverb import testing
    tables = [testing.table("t", max_size=100_000), reverb.Table.queue("queue", 1000)]
    options = {"tokens": sys.argv[1], "unix_path": sys.argv[2], "max_bytes": 256 * 2**20}
    server = reverb.Server(tables, host="127.0.0.1", **options)
    print(server.port)
    server.wait()
"""

# Each attack goes on until the program is killed. Its connections may be refused or ended.
ATTACKERS = """
    import contextlib
    import gzip
    import itertools
    import sys
    import threading
    import time
    from support.wire.raw_http2 import PREFACE, Http2, frame
    import socket

    port = int(sys.argv[1])
    HEALTH = "/grpc.health.v1.Health/"
    OWN = "/reverb.ReplayService/"
    BOMB = gzip.compress(bytes(2**27))
    NAMES = b"\\x0a\\x00" * 2**21

    def compressed():
        with Http2(port) as connection:
            for _ in range(8):
                stream = connection.open(HEALTH + "Check", grpc_encoding="gzip")
                head = b"\\x01" + len(BOMB).to_bytes(4, "big")
                connection.send_bytes(stream, head + BOMB, end=True)
            connection.ping()

    def endless_messages():
        with Http2(port) as connection:
            for _ in range(16):
                stream = connection.open(HEALTH + "Check")
                connection.send_bytes(stream, b"\\x00" + (2**26).to_bytes(4, "big") + bytes(4096))
            time.sleep(0.2)

    def worst_messages():
        for method in ("SetDirectory", "ConfigureTables", "Watch", "UpdatePriorities"):
            with contextlib.suppress(OSError), Http2(port) as connection:
                connection.send(connection.open(OWN + method), NAMES, end=True)
                connection.ping()

    def watched_health():
        with Http2(port) as connection:
            for _ in range(100):
                connection.send(connection.open(HEALTH + "Watch"), b"", end=True)
            time.sleep(0.2)

    held = []

    def silent_connections():
        connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        connection.sendall(PREFACE + frame(4, 0, 0))
        held.append(connection)
        del held[:-300]
        time.sleep(0.005)

    def guesses():
        with Http2(port) as connection:
            for number in itertools.count():
                token = f"Bearer rvb_{number:043}"
                connection.send(connection.open(OWN + "Status", authorization=token), b"", end=True)
                connection.ping()

    counts = {}

    def forever(attack):
        for count in itertools.count(1):
            with contextlib.suppress(OSError):
                attack()
            counts[attack.__name__] = count
            time.sleep(0.001)

    attacks = [
        compressed, endless_messages, worst_messages, watched_health, silent_connections, guesses
    ]
    for attack in attacks:
        threading.Thread(target=forever, args=(attack,), daemon=True).start()
    while len(counts) < len(attacks):
        time.sleep(0.01)
    print("each has begun anew")
    sys.stdin.readline()
    print(counts)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_callers_without_a_token_disturb_nobody(tmp_path):
    tokens = TokensFile(tmp_path / "tokens")
    token = tokens.add("learner", "sample,insert,admin")
    path = tmp_path / "socket"
    with Program(SERVER, tokens.path, path, MIMALLOC_PURGE_DELAY="0") as server:
        port = int(server.line())
        client = reverb.Client(f"unix:{path}", token=token)
        client.insert_batch([np.zeros((1000, 60))], {"t": 1.0})
        with GoodClient(client) as before:
            time.sleep(3)
        base = peak = resident_bytes(server.pid)
        with Program(ATTACKERS, port) as attackers, GoodClient(client) as good:
            deadline = time.monotonic() + 20
            assert attackers.line() == "each has begun anew"
            while time.monotonic() < deadline:
                peak = max(peak, resident_bytes(server.pid))
                time.sleep(0.02)
            memory = client.status().memory
            attackers.tell("how many?")
            counts = attackers.line()
        assert "panicked" not in server.errors
    figures = (
        f"slowest insert and sample: {before.slowest * 1000:.0f} ms alone, "
        f"{good.slowest * 1000:.0f} ms beside the attacks ({good.rounds} rounds); memory of the "
        f"server: {base / MIB:.0f} MiB before, {peak / MIB:.0f} at most; told: {memory}; {counts}"
    )
    print(figures, file=sys.stderr)
    assert good.rounds > 100, figures
    assert good.slowest < 4 * PATIENCE, figures
    assert peak - base < 96 * MIB, figures
