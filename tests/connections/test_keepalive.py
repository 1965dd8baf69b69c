# SPDX-License-Identifier: Apache-2.0
"""Peers that freeze or vanish without a word: when that is noticed, and what is lost then."""

import contextlib
import math
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError, UnavailableError
from support.hosts import REMOTE
from support.programs import Program

# Intervals at which pings are cheap, and which a busy machine still keeps.
QUICK = {"keepalive_s": 0.2, "keepalive_timeout_s": 1.0}

# Longer than both together, with all that a busy machine adds.
GONE_S = 4.0

SERVER = """
    import sys
    import reverb

    options = {"keepalive_s": float(sys.argv[1]), "keepalive_timeout_s": float(sys.argv[2])}
    tables = [reverb.Table.queue(name, 10_000) for name in ("queue", "other")]
    tables.append(reverb.Table.stack("stack", 10_000))
    server = reverb.Server(tables, **options)
    print(server.port)
    server.wait()
"""


@contextlib.contextmanager
def stopped(program):
    """A process that does nothing for the length of the block, and is not gone."""
    program.signal(signal.SIGSTOP)
    stat = pathlib.Path(f"/proc/{program.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)
    try:
        yield
    finally:
        program.signal(signal.SIGCONT)


def add(writer, value, table):
    writer.append([value])
    writer.create_item(table, 1.0, {"a": writer.history[0][-1:]})


def values(samples):
    return [int(steps[0].data[0]) for steps in samples]


MAKERS = {
    "client": lambda **options: reverb.Client("localhost:1", **options),
    "server": lambda **options: reverb.Server([testing.table()], **options),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0"),
        (-1.0, "-1"),
        (0.05, "0.05"),
        (86_401, "86401"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
    ],
)
def test_a_keepalive_is_from_a_tenth_of_a_second_to_a_day(make, seconds, told, error_says):
    limits = "must be from 0.1 to 86400 seconds"
    error_says(
        lambda: make(keepalive_s=seconds),
        InvalidArgumentError,
        f"keepalive_s {limits}, or None for no pings, got {told}",
    )
    error_says(
        lambda: make(keepalive_timeout_s=seconds),
        InvalidArgumentError,
        f"keepalive_timeout_s {limits}, got {told}",
    )


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_pings_can_be_left_out(make):
    made = make(keepalive_s=None, keepalive_timeout_s=86_400)
    if isinstance(made, reverb.Server):
        made.stop()


@pytest.mark.parametrize(
    "options",
    [{}, QUICK, {"keepalive_s": None}, {"connect_timeout_s": 0.25, "keepalive_timeout_s": 60.0}],
)
def test_a_copy_of_a_client_keeps_its_options(options):
    client = reverb.Client("localhost:1", **options)
    copy = pickle.loads(pickle.dumps(client))
    assert pickle.dumps(copy) == pickle.dumps(client)
    made_by = copy.__reduce__()[0]
    assert made_by.keywords == options if options else made_by is reverb.Client


def test_a_server_that_stays_frozen_is_noticed_by_all_who_wait(background):
    with Program(SERVER, 10, 5) as server:
        address = f"127.0.0.1:{server.line()}"
        client = reverb.Client(address, connect_timeout_s=0.5, **QUICK)
        patient = reverb.Client(address, connect_timeout_s=0.5, keepalive_s=None)
        writer = client.trajectory_writer(1)
        add(writer, 1, "stack")
        writer.flush()
        waiting = background(patient.sample_batch, "other", 1)
        calls = [
            background(client.sample_batch, "queue", 1),
            background(lambda: next(client.sample("queue", 1))),
        ]
        time.sleep(0.5)  # They are at the server by now; if not, they fail in the same way.
        with stopped(server):
            add(writer, 2, "stack")
            calls.append(background(writer.flush))
            for call in calls:
                with pytest.raises(UnavailableError, match=address):
                    call.result()
            assert waiting.running
        reverb.Client(address).insert([0], {"other": 1.0})
        assert waiting.result().data == [0]


@pytest.mark.slow
def test_items_for_a_server_that_was_given_up_are_there_once(background):
    with Program(SERVER, 0.2, 1) as server:
        address = f"127.0.0.1:{server.line()}"
        client = reverb.Client(address, connect_timeout_s=30, **QUICK)
        writer = client.trajectory_writer(1)
        for i in range(200):
            add(writer, i, "stack")
        writer.flush()
        with stopped(server):
            for i in range(200, 400):
                add(writer, i, "stack")
            flushing = background(writer.flush)
            time.sleep(GONE_S)
        flushing.result()
        scanned = [int(sample.data[0][0]) for sample in client.scan("stack")]
        assert scanned == list(range(400))


FROZEN_CLIENT = """
    import sys
    import threading
    import reverb

    address = sys.argv[1]
    client = reverb.Client(address, connect_timeout_s=30, keepalive_s=0.2, keepalive_timeout_s=1)
    samples = []

    def sample():
        for steps in client.sample("empty", 2):
            samples.append(int(steps[0].data[0]))

    thread = threading.Thread(target=sample)
    thread.start()
    writer = client.trajectory_writer(1)
    for i in range(5):
        writer.append([i])
        writer.create_item("full", 1.0, {"a": writer.history[0][-1:]})
    print("ready")
    sys.stdin.readline()
    writer.flush()
    thread.join()
    print(samples)
"""


@pytest.mark.slow
def test_a_client_that_was_given_up_loses_and_doubles_nothing(start, until):
    full, empty = reverb.Table.queue("full", 2), reverb.Table.queue("empty", 10)
    server = start(full, empty, **QUICK)

    def waits(table, for_what):
        # The time that the table spends waiting grows while somebody waits.
        before = getattr(table.info.table_worker_time, for_what)
        time.sleep(0.05)
        return getattr(table.info.table_worker_time, for_what) > before

    with Program(FROZEN_CLIENT, f"127.0.0.1:{server.port}") as frozen:
        assert frozen.line() == "ready"
        until(lambda: waits(full, "waiting_for_sampling_ms"))
        until(lambda: waits(empty, "waiting_for_inserts_ms"))
        here = server.localhost_client()
        with stopped(frozen):
            until(lambda: waits(full, "sleeping_ms") and waits(empty, "sleeping_ms"))
            # No client gets the item while the client that requested it is away.
            here.insert([7], {"empty": 1.0})
            assert empty.info.current_size == 1
            # The items of the writer that waited for room do not come in either.
            taken = values(here.sample("full", 2))
            assert full.info.current_size == 0
        frozen.tell()
        taken += values(here.sample("full", 3))
        here.insert([8], {"empty": 1.0})
        assert frozen.line() == "[7, 8]"
        assert taken == list(range(5))
        assert full.info.current_size == 0


NAMESPACE = "reverb-test"
HERE, THERE = "10.213.77.1", "10.213.77.2"

# A server in a network of its own. It tells when nobody waits at its table any more.
REMOTE_SERVER = """
    import ctypes
    import os
    import sys
    import time

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.open(sys.argv[1], os.O_RDONLY), 0x40000000):
        raise OSError(ctypes.get_errno(), "setns")

    import reverb

    table = reverb.Table.queue("queue", 10)
    server = reverb.Server([table])
    print(server.port)
    sys.stdin.readline()
    began, before = time.monotonic(), table.info.table_worker_time.sleeping_ms
    while table.info.table_worker_time.sleeping_ms <= before + 20:
        time.sleep(0.01)
    print(time.monotonic() - began)
    server.wait()
"""


def run_ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def network():
    """A network with a machine at its other end; gives what belongs into `setns`."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs root on Linux, to make a network")
    try:
        run_ip("netns", "add", NAMESPACE)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs `ip netns`: {error}")
    try:
        run_ip("link", "add", "rvtest0", "type", "veth", "peer", "name", "rvtest1")
        run_ip("link", "set", "rvtest1", "netns", NAMESPACE)
        run_ip("addr", "add", f"{HERE}/24", "dev", "rvtest0")
        run_ip("link", "set", "rvtest0", "up")
        run_ip("-n", NAMESPACE, "addr", "add", f"{THERE}/24", "dev", "rvtest1")
        run_ip("-n", NAMESPACE, "link", "set", "rvtest1", "up")
        run_ip("-n", NAMESPACE, "link", "set", "lo", "up")
        yield f"/run/netns/{NAMESPACE}"
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            run_ip("link", "del", "rvtest0")
        run_ip("netns", "del", NAMESPACE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "least_s", "most_s"),
    [
        pytest.param({}, 5.0, 20.0, id="pings"),
        # As with dm-reverb, TCP alone has to notice. The server still sends pings.
        pytest.param({"keepalive_s": None}, 20.0, 40.0, id="tcp"),
    ],
)
@pytest.mark.timeout(120)
def test_a_machine_that_vanishes_is_noticed(network, options, least_s, most_s):
    with Program(REMOTE_SERVER, network) as server:
        address = f"{THERE}:{server.line()}"
        client = reverb.Client(address, connect_timeout_s=0.5, **options)
        client.server_info()
        noticed = []

        def sample():
            with pytest.raises(UnavailableError, match=address):
                client.sample_batch("queue", 1)
            noticed.append(time.monotonic())

        sampling = threading.Thread(target=sample)
        sampling.start()
        time.sleep(1)
        server.tell()
        time.sleep(1)
        began = time.monotonic()
        # From now on all packets of both ends are dropped: no FIN, no RST, no ICMP.
        nobody = ("lladdr", "02:00:00:00:00:02", "nud", "permanent")
        run_ip("neigh", "replace", THERE, *nobody, "dev", "rvtest0")
        run_ip("-n", NAMESPACE, "neigh", "replace", HERE, *nobody, "dev", "rvtest1")
        sampling.join(most_s + 20)
        assert least_s < noticed[0] - began < most_s
        # The server counted from a second before.
        assert 4.0 < float(server.line(60)) - 1 < 20.0


def test_data_that_keeps_coming_is_a_sign_of_life(start, background):
    # Megabytes are under way when a ping is due, and the timeout is short.
    server = start(reverb.Table.queue("queue", 100), keepalive_s=0.1, keepalive_timeout_s=0.5)
    client = reverb.Client(f"{REMOTE}:{server.port}", keepalive_s=0.1, keepalive_timeout_s=0.5)
    large = np.random.default_rng(0).integers(0, 256, 8_000_000, dtype=np.uint8)
    inserting = background(lambda: [client.insert([large], {"queue": 1.0}) for _ in range(20)])
    for _ in range(20):
        np.testing.assert_array_equal(client.sample_batch("queue", 1).data[0].ravel(), large)
    inserting.result()
    info = server.localhost_client().server_info()["queue"].rate_limiter_info
    assert (info.insert_stats.completed, info.sample_stats.completed) == (20, 20)
