# SPDX-License-Identifier: Apache-2.0
"""Measures a Unix socket beside loopback TCP.

    python benchmarks/unix_sockets.py
    python benchmarks/unix_sockets.py --seconds 1 --rounds 15

One server in a process of its own listens on both. Each case runs on both in turn, `--rounds`
times; the table shows medians, and the median of the ratios of neighbours. "CPU" is the time of
processors, of client and server together, beside that of TCP. The last line is the time of a
connection with everything that belongs to it.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile

from two_ways import ServerProcess, compare, first_call_ms, serve

import reverb


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--serve", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        return serve(unix_path=arguments.serve)
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "reverb"
        with ServerProcess([__file__, "--serve", str(path)]) as server:

            def by_tcp() -> reverb.Client:
                return reverb.Client(f"127.0.0.1:{server.port}")

            def by_socket() -> reverb.Client:
                return reverb.Client(f"unix:{path}")

            compare(
                ("TCP", "Unix"),
                (by_tcp(), by_socket()),
                (server, server),
                seconds=arguments.seconds,
                rounds=arguments.rounds,
            )
            print(
                f"first call of a client: {first_call_ms(by_tcp):.2f} ms by TCP, "
                f"{first_call_ms(by_socket):.2f} ms by a Unix socket"
            )


if __name__ == "__main__":
    main()
