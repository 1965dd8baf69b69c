# SPDX-License-Identifier: Apache-2.0
"""Measures what TLS costs, beside the same calls in cleartext.

    python benchmarks/tls.py
    python benchmarks/tls.py --seconds 1 --rounds 15

Two servers in processes of their own, one with a certificate and one without. Each case runs on
both in turn, `--rounds` times; the table shows medians, and the median of the ratios of neighbours.
Small items should reach 0.9 of cleartext, items of 400 kB 0.5. "CPU" is the time of processors, of
client and server together, beside that of cleartext. The last line is the time of a connection with
everything that belongs to it.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile

from two_ways import ServerProcess, compare, first_call_ms, serve

import reverb
from reverb.core import native


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--serve", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        return serve(tls=_tls(*arguments.serve))
    with tempfile.TemporaryDirectory() as directory:
        native.self_signed(directory, ["localhost"], 1)
        tls = reverb.ClientTls(ca=pathlib.Path(directory, "ca.crt"))
        with (
            ServerProcess([__file__, "--serve"]) as clear,
            ServerProcess([__file__, "--serve", directory]) as encrypted,
        ):

            def without_tls() -> reverb.Client:
                return reverb.Client(f"localhost:{clear.port}")

            def with_tls() -> reverb.Client:
                return reverb.Client(f"grpcs://localhost:{encrypted.port}", tls=tls)

            compare(
                ("cleartext", "TLS"),
                (without_tls(), with_tls()),
                (clear, encrypted),
                seconds=arguments.seconds,
                rounds=arguments.rounds,
            )
            print(
                f"first call of a client: {first_call_ms(without_tls):.2f} ms in cleartext, "
                f"{first_call_ms(with_tls):.2f} ms with TLS"
            )


def _tls(directory: str | None = None) -> reverb.ServerTls | None:
    if directory is None:
        return None
    files = pathlib.Path(directory)
    return reverb.ServerTls(cert=files / "tls.crt", key=files / "tls.key")


if __name__ == "__main__":
    main()
