# SPDX-License-Identifier: Apache-2.0
"""The order in which a journal's files are written and synced, as the system sees it."""

import collections
import os
import re
import shutil
import subprocess
import sys

import pytest

CALLS = {
    "pwrite64": "write",
    "fdatasync": "sync",
    "fsync": "sync",
    "rename": "rename",
    "renameat": "rename",
    "renameat2": "rename",
    "openat": "create",
}
DIRECTORY = "directory"
# Two starts; the second one has a base to make, and goes on with the log meanwhile.
SOURCE = """
import glob, sys
from operations.test_journal import client_of, fill, serve
from support.waiting import wait_until
for start in range(2):
    before = glob.glob(f"{sys.argv[1]}/base-*.seg")
    with serve(sys.argv[1]) as server:
        for begin in range(0, 60, 20):
            written = client_of(server).status().store.written_bytes
            fill(client_of(server), range(begin, begin + 20))
            wait_until(lambda: client_of(server).status().store.written_bytes > written)
        if start == 1:
            wait_until(lambda: set(glob.glob(f"{sys.argv[1]}/base-*.seg")) - set(before))
"""


def calls_of(lines, directory):
    """What each thread does to files of a directory: calls, and their names."""
    threads = collections.defaultdict(list)
    name = re.compile(rf'{re.escape(str(directory))}(?:/([a-z]+-\d+\.(?:seg|part)))?[">]')
    for line in lines:
        # A call that another thread's has interrupted ends in a line of its own, without a `(`.
        begun = re.match(r"(\d+) +[\d:.]+ (\w+)\((.*)", line)
        found = begun and name.search(begun[3])
        if not found:
            continue
        call = CALLS[begun[2]]
        file = found[1] or DIRECTORY
        # A file with another name to come is of no use without that.
        if call != "create" or ("O_CREAT" in line and file.endswith(".seg")):
            threads[begun[1]].append((call, file))
    return list(threads.values())


def fault_of(calls):
    """The first call of a thread that relies on one that may not be on disk; `None`: there is none.

    A frame of a log refers to payloads and to their files, and the next frame says that it is on
    disk. A name is given to what is whole. A base counts only when it has its name.
    """
    unsynced = set()
    for at, (call, file) in enumerate(calls):
        is_frame = call == "write" and re.fullmatch(r"log-\d+\.seg", file)
        needed = {it for it in unsynced if call == "rename" or not it.startswith("base")}
        if needed and (call == "rename" or is_frame):
            return f"call {at}, {call} of {file}, before {needed} were synced"
        if call == "sync":
            unsynced.discard(file)
        else:
            unsynced.add(file if call == "write" else DIRECTORY)
    return f"{unsynced} were not synced at the end" if unsynced else None


@pytest.mark.slow
@pytest.mark.debian
@pytest.mark.skipif(shutil.which("strace") is None, reason="Debian's package strace is missing")
def test_nothing_relies_on_what_is_not_on_disk(tmp_path, pytestconfig):
    directory, traced = tmp_path / "store", tmp_path / "calls"
    command = [
        "strace",
        "-f",
        "-tt",
        "-y",
        "-qq",
        "-o",
        str(traced),
        "-e",
        f"trace={','.join(CALLS)}",
    ]
    command += [sys.executable, "-c", SOURCE, str(directory)]
    paths = {"PYTHONPATH": f"{pytestconfig.rootpath}/tests:{pytestconfig.rootpath}"}
    subprocess.run(command, env={**os.environ, **paths}, check=True)
    threads = calls_of(traced.read_text().splitlines(), directory)
    counts = collections.Counter(
        (call, file.partition("-")[0]) for calls in threads for call, file in calls
    )
    assert counts["write", "log"] >= 6
    assert counts["write", "data"] >= 6
    assert counts["rename", "base"] >= 2
    assert counts["create", "data"] >= 2
    for calls in threads:
        assert fault_of(calls) is None, calls
        for at, (call, _) in enumerate(calls):
            if call == "sync":
                assert fault_of(calls[:at] + calls[at + 1 :]), f"without call {at} of {calls}"
