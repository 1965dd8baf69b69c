# SPDX-License-Identifier: Apache-2.0
"""A server with a budget under load: it stays within, and nothing that was confirmed is lost."""

import collections

import numpy as np
import pytest

import reverb
from support.programs import FreshProgram as Program
from support.programs import peak_bytes
from support.programs import run_fresh as run
from support.waiting import PATIENCE

MIB = 2**20

_WRITER = """
    import sys, time
    import numpy as np
    import reverb
    from support.programs import peak_bytes
    client = reverb.Client(sys.argv[1])
    writer, seconds = int(sys.argv[2]), float(sys.argv[3])
    rng = np.random.default_rng(writer)
    data = rng.integers(0, 256, int(sys.argv[4]), dtype=np.uint8)
    idle = peak_bytes()
    print("ready")
    sys.stdin.readline()
    end, step = time.monotonic() + seconds, 0
    with client.trajectory_writer(1) as trajectory:
        while time.monotonic() < end or step < int(sys.argv[5]):
            trajectory.append({"data": data, "step": np.int64(step), "writer": np.int64(writer)})
            history = trajectory.history
            columns = {name: history[name][-1] for name in history}
            trajectory.create_item("table", 1.0, columns)
            step += 1
        trajectory.flush()
    print(step, peak_bytes() - idle)
"""

_SERVER = """
    import reverb, sys
    from reverb import testing
    server = reverb.Server([testing.table(max_size=10**6)], host="127.0.0.1",
                           max_bytes=int(sys.argv[1]))
    print(server.port)
    server.wait()
"""


def flood(budget, writers, seconds, item_bytes):
    """Lets writers insert as fast as they can, and checks what they were told."""
    with Program(_SERVER, budget) as server:
        address = f"127.0.0.1:{int(server.line())}"
        client = reverb.Client(address)
        client.insert(
            {"data": np.uint8([0]), "step": np.int64(0), "writer": np.int64(-1)}, {"table": 1.0}
        )
        idle = peak_bytes(server.pid)
        # On a slow machine too they write more than the budget.
        least = int(1.2 * budget / item_bytes / writers)
        arguments = (seconds, item_bytes, least)
        programs = [Program(_WRITER, address, n, *arguments) for n in range(writers)]
        try:
            for program in programs:
                assert program.line() == "ready"
            for program in programs:
                program.tell()
            told = [program.line(seconds + 60 * PATIENCE).split() for program in programs]
            for program in programs:
                assert (program.ended(), program.errors) == (0, "")
        finally:
            for program in programs:
                program.__exit__()
        confirmed = [int(count) for count, _ in told]
        most = max(int(peak) for _, peak in told)
        info = client.server_info()["table"]
        present = collections.defaultdict(list)
        for sample in client.scan("table"):
            data = dict(zip(("data", "step", "writer"), sample.data, strict=True))
            present[int(np.squeeze(data["writer"]))].append(int(np.squeeze(data["step"])))
        used = peak_bytes(server.pid) - idle
        status = client.status()
    print(f"{sum(confirmed)} items, peak {used / MIB:.0f} MiB over idle, told {status.memory}")
    print(f"peak of a writer {most / MIB:.0f} MiB over idle")
    assert info.rate_limiter_info.insert_stats.completed == sum(confirmed) + 1
    for writer, count in enumerate(confirmed):
        # The oldest are removed first: of each writer the last ones are there, without a gap.
        steps = present[writer]
        assert steps == list(range(count - len(steps), count))
        assert steps
    assert used <= 1.25 * budget
    assert most <= 512 * MIB
    assert info.current_size * item_bytes > 0.7 * budget


def test_writers_of_large_items_stay_within_the_budget():
    flood(256 * MIB, writers=2, seconds=2, item_bytes=400_000)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_writers_flat_out_for_a_minute():
    flood(512 * MIB, writers=8, seconds=60, item_bytes=400_000)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_million_small_items():
    source = f"""
        import numpy as np
        import reverb
        from reverb import testing
        from support.programs import resident_bytes
        table = testing.table(max_size=10**7, sampler=reverb.selectors.Uniform())
        server = reverb.Server([table], max_bytes={256 * MIB})
        client = server.localhost_client()
        step = lambda start: {{
            "o": np.zeros((1000, 4), np.float32),
            "i": np.arange(start, start + 1000),
        }}
        client.insert_batch(step(0), {{"table": 1.0}})
        before = peak = resident_bytes()
        for start in range(1000, 10**7, 1000):
            client.insert_batch(step(start), {{"table": 1.0}})
            if start % 100_000 == 0:
                peak = max(peak, resident_bytes())
        info = client.server_info()["table"]
        assert info.rate_limiter_info.insert_stats.completed == 10**7
        last = max(int(np.squeeze(sample.data[0])) for sample in client.scan("table"))
        assert last == 10**7 - 1
        print(info.current_size, peak - before, server.status().memory.total)
    """
    (line,) = run(source, timeout_s=250, MIMALLOC_PURGE_DELAY="0")
    size, used, told = map(int, line.split())
    print(f"{size} items in {used / MIB:.0f} MiB, told {told / MIB:.0f} MiB")
    assert used <= 1.25 * 256 * MIB
    assert told <= 256 * MIB
    assert size > 500_000
