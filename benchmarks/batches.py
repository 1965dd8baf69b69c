# SPDX-License-Identifier: Apache-2.0
"""Measures the options of `Client.sample_batch`, in one process.

Prints the median of several rounds, in turn, of the time of the calling thread: batches as always,
into given memory, from a `batch_sampler`, packed beside items of equal lengths with the same bytes,
and updates of priorities. With `--growth` it counts what 10,000 batches into given memory leave,
and the most that Python and NumPy take meanwhile, which no block can exceed. The blocks of the
native module are counted by `cargo test -p reverb-client --test large_allocations`.
"""

import argparse
import ctypes
import os
import pathlib
import statistics
import time
import tracemalloc

import numpy as np

import reverb


def table(name, items):
    return reverb.Table(
        name,
        reverb.selectors.Uniform(),
        reverb.selectors.Fifo(),
        max_size=items,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


def write_sequences(client, name, lengths, width):
    with client.trajectory_writer(max(lengths)) as writer:
        for length in lengths:
            for _ in range(length):
                writer.append([np.random.random(width).astype(np.float32)])
            writer.create_item(name, 1.0, [writer.history[0][-length:]])
            writer.end_episode(clear_buffers=True)


def medians(calls, rounds, count):
    """Seconds of each call, the median of rounds in which all calls take turns."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.thread_time()
            for _ in range(count):
                call()
            times[name].append((time.thread_time() - start) / count)
    return {name: statistics.median(of) for name, of in times.items()}


class Mallinfo(ctypes.Structure):
    """The result of `mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def allocated_by_libc():
    call = ctypes.CDLL(None).mallinfo2
    call.restype = Mallinfo
    info = call()
    return info.uordblks + info.hblkhd


def resident():
    """Bytes of memory of this process, those of the native module included."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def growth(client, name, batch_size, calls=10_000):
    """Bytes that so many batches into given memory leave, and the most that Python takes meanwhile.

    Returns:
      The bytes that stay by Python's count, by libc's and by the system's, and Python's peak.
    """
    out = client.sample_batch(name, batch_size)
    tracemalloc.start()
    for _ in range(2_000):
        client.sample_batch(name, batch_size, out=out)
    # These calls take memory themselves, which is not counted.
    in_libc, in_all = allocated_by_libc(), resident()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    for _ in range(calls):
        client.sample_batch(name, batch_size, out=out)
    current, peak = tracemalloc.get_traced_memory()
    grown = allocated_by_libc() - in_libc, resident() - in_all
    tracemalloc.stop()
    return current - before, *grown, peak - before


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--width", type=int, default=16, help="numbers of a step")
    parser.add_argument("--only-default", action="store_true", help="for releases without the rest")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    server = reverb.Server([table(name, 20_000) for name in ("small", "equal", "ragged")])
    client = reverb.Client(f"127.0.0.1:{server.port}")
    columns = [np.random.random((10_000, 4)).astype(np.float32), rng.integers(0, 4, 10_000)]
    client.insert_batch([*columns, columns[0], np.ones(10_000)], {"small": 1.0})
    write_sequences(client, "equal", [24] * 500, options.width)
    write_sequences(client, "ragged", rng.integers(8, 41, 500).tolist(), options.width)

    calls = {f"small {n}": lambda n=n: client.sample_batch("small", n) for n in (32, 64, 256)}
    calls["equal 64"] = lambda: client.sample_batch("equal", 64)
    if not options.only_default:
        given = {n: client.sample_batch("small", n) for n in (64, 256)}
        slots = client.batch_sampler("small", 256)
        info = client.sample_batch("small", 256).info
        priorities = np.random.random(256)
        keys = info.key.view(np.int64)
        for n, out in given.items():
            calls[f"small {n}, out"] = lambda n=n, out=out: client.sample_batch("small", n, out=out)
        calls["small 256, batch_sampler"] = lambda: next(slots)
        calls["ragged 64, packed"] = lambda: client.sample_batch("ragged", 64, ragged="packed")
        calls["ragged 64, pad"] = lambda: client.sample_batch("ragged", 64, ragged="pad")
        calls["update_priorities 256"] = lambda: client.update_priorities("small", keys, priorities)
    found = medians(calls, options.rounds, 300)
    for name, seconds in found.items():
        print(f"{name:28} {seconds * 1e6:8.1f} us")
    if not options.only_default:
        # The mean length of `ragged` is that of `equal`.
        print(
            f"packed / equal lengths       {found['equal 64'] / found['ragged 64, packed']:8.2f} x"
        )
    if options.growth:
        for batch_size in (64, 256, 1024):
            of_python, of_libc, of_process, peak = growth(client, "small", batch_size)
            print(
                f"10,000 batches of {batch_size:4}, out: Python {of_python:+} B, "
                f"libc {of_libc:+} B, resident {of_process:+} B; peak of Python {peak:+} B"
            )


if __name__ == "__main__":
    main()
