# SPDX-License-Identifier: Apache-2.0
"""Shell blocks of a page, run one after another as a person would type them.

`reverb` and `reverb_server` are those of this tree. A server is started in the background, as in a
terminal of its own, and the next command begins when it is ready. The ports 8000 and 8001 of the
pages become free ones.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np

import reverb
from support.waiting import DEADLINE_S, wait_until

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONFIG = re.compile(r"^```text\n# (\w+\.textproto)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# The config of pages that show none.
_TABLE = """
tables: {{
  table_name: "{name}"
  sampler: {{ prioritized: {{ priority_exponent: 0.8 }} }}
  remover: {{ fifo: true }}
  max_size: 1000000
  rate_limiter: {{ samples_per_insert: 2 min_size_to_sample: 1 min_diff: -100 max_diff: 1000 }}
}}
"""
_TABLES = "".join(_TABLE.format(name=name) for name in ("replay", "prio"))

_REVERB = 'exec "{python}" -P -m reverb "$@"\n'
_SERVER = """
log="{stage}/log-$$"
"{python}" -P -c 'from reverb.server_executable import server_main; server_main.app_run_main()' \
    "$@" > "$log" 2>&1 < /dev/null &
echo $! >> "{stage}/servers"
until grep -q "is ready on port" "$log"; do
    kill -0 $! 2> /dev/null || {{ cat "$log" >&2; exit 1; }}
    sleep 0.05
done
"""


def shell_blocks(text: str) -> list[str]:
    """The blocks of a page that are run: those marked `sh` alone."""
    return _BLOCK.findall(text)


def run_shell_blocks(text: str, folder: pathlib.Path, ports: tuple[int, int]) -> str:
    """Runs the blocks of a page in an empty folder; returns what they print.

    Raises:
      AssertionError: If one fails, with all that it printed.
    """
    commands, stage = folder / "bin", folder / "stage"
    work = folder / "work"
    for path in (commands, stage, work):
        path.mkdir()
    for name, script in (("reverb", _REVERB), ("reverb_server", _SERVER)):
        (commands / name).write_text(
            "#!/bin/bash\n" + script.format(python=sys.executable, stage=stage)
        )
        (commands / name).chmod(0o755)

    def with_free_ports(part: str) -> str:
        return part.replace("8000", str(ports[0])).replace("8001", str(ports[1]))

    configs = dict.fromkeys(("server.textproto", "tables.textproto"), "port: 8000\n" + _TABLES)
    configs |= {name: f"# {name}\n{config}" for name, config in _CONFIG.findall(text)}
    for name, config in configs.items():
        (work / name).write_text(with_free_ports(config))
    environment = dict(os.environ, PATH=f"{commands}:{os.environ['PATH']}")
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-c", "set -euo pipefail\n" + script],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    blocks = [with_free_ports(block) for block in shell_blocks(text)]
    try:
        if "reverb_server " not in blocks[0]:
            # The page is about a server that runs, and has saved a checkpoint.
            run("reverb_server --config-file tables.textproto --checkpoint-dir checkpoints")
            client = reverb.Client(f"127.0.0.1:{ports[0]}")
            for table in ("replay", "prio"):
                client.insert_batch({"x": np.zeros((4, 2), np.float32)}, {table: 1.0})
            client.checkpoint()
        # One shell, because a block may set variables for the next one.
        return run("\n".join(blocks))
    finally:
        _stop_servers(stage)


def _stop_servers(stage: pathlib.Path) -> None:
    if not (stage / "servers").exists():
        return
    for process in map(int, (stage / "servers").read_text().split()):
        os.kill(process, signal.SIGTERM)
        wait_until(lambda process=process: not _runs(process))


def _runs(process: int) -> bool:
    try:
        status = pathlib.Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
