# SPDX-License-Identifier: Apache-2.0
"""Runs the Python tests of the tree with this interpreter.

.venv/bin/python tools/python_tests.py
.venv/bin/python tools/python_tests.py -m 'not conformance' tests/api
.venv/bin/python tools/python_tests.py --forgetting-store=journal
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from pytest_runs import LIMIT_S, WORKERS, Pytest


def main() -> int:
    """Returns 0 if the tests passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", default=["tests"], help="files and folders")
    parser.add_argument("-m", dest="marks", default="not slow and not conformance")
    parser.add_argument("-n", dest="workers", type=int, default=WORKERS, help="processes")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for a run of pytest")
    parser.add_argument(
        "--forgetting-store",
        choices=("payloads", "journal"),
        help="servers have a store that forgets every payload at once",
    )
    arguments = parser.parse_args()
    store = arguments.forgetting_store
    pytest = Pytest(
        f"store-{store}" if store else "pytest",
        pathlib.Path(sys.executable),
        [f"--forgetting-store={store}"] if store else [],
        workers=arguments.workers,
        limit_s=arguments.limit_s,
    )
    return 0 if pytest.run(arguments.tests, arguments.marks).passed else 1


if __name__ == "__main__":
    sys.exit(main())
