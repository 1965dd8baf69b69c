# SPDX-License-Identifier: Apache-2.0
"""The program of `reverb_server`, with a table `t`, and a client of it."""

import contextlib
import re

import reverb
from support.programs import Program
from support.waiting import DEADLINE_S

CONFIG = """
tables: {
  table_name: "t"
  sampler: { fifo: true }
  remover: { fifo: true }
  max_size: 20
  rate_limiter: { min_size_to_sample: 1 samples_per_insert: 1 min_diff: -1e300 max_diff: 1e300 }
}
"""
QUEUE = """
tables: {
  table_name: "queue"
  sampler: { fifo: true }
  remover: { fifo: true }
  max_size: 100
  max_times_sampled: 1
  rate_limiter: { min_size_to_sample: 1 samples_per_insert: 1 min_diff: 0 max_diff: 100 }
}
"""
COMMAND = """
from reverb.server_executable import server_main
server_main.app_run_main()
"""
# Starts the program of its arguments on a terminal of its own, which it closes when it is told to.
# Prints the line that says that it is ready, then its process and its exit code.
TERMINAL = """
import os
import pty
import sys

pid, terminal = pty.fork()
if not pid:
    os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
text = b""
while b"is ready on port" not in text or not text.endswith(b"\\n"):
    text += os.read(terminal, 1000)
print(*[line for line in text.decode().splitlines() if "is ready on port" in line])
sys.stdin.readline()
os.close(terminal)
print(pid)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status))
"""


def client_of(ready):
    """A client of the server on this machine that has printed this line."""
    port = re.search(r" is ready on port (\d+) of ", ready)[1]
    return reverb.Client(f"127.0.0.1:{port}", connect_timeout_s=DEADLINE_S)


@contextlib.contextmanager
def running(*options, source=COMMAND, config=CONFIG, **environment):
    """A server in a process of its own, and its client: `with running() as (program, client)`."""
    arguments = (f"--config={config}", "--host=127.0.0.1", *options)
    with Program(source, *arguments, **environment) as program:
        # A name of a table may have line ends, and this line shows it as it is.
        yield program, client_of(program.line())
