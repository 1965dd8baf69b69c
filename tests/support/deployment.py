# SPDX-License-Identifier: Apache-2.0
"""The files in `deploy/`, as the tests read them: units, settings of `reverb_server`, durations."""

from __future__ import annotations

import pathlib
import re
import shlex

from reverb.server_executable.options import OPTIONS
from support.programs import Program
from support.reverb_server import COMMAND

ROOT = pathlib.Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

FLAGS = {option.flag for option in OPTIONS} | {"--config-file"}
# `--no-checkpoint-on-stop` and the like.
FLAGS |= {f"--no-{option.flag.removeprefix('--')}" for option in OPTIONS if option.kind is bool}

_SECONDS = {"s": 1, "min": 60, "h": 3600}


def flags(arguments: list[str]) -> dict[str, str]:
    """Values by flag of arguments such as `--port 0 --checkpoint-on-stop --http-port=0`."""
    values: dict[str, str] = {}
    flag = ""
    for argument in arguments:
        if argument.startswith("--"):
            flag, _, value = argument.partition("=")
            assert flag not in values, f"{flag} is given twice"
            values[flag] = value
        else:
            assert values.get(flag) == "", f"{argument} belongs to no flag"
            values[flag] = argument
    return values


def arguments(values: dict[str, str]) -> list[str]:
    """The reverse of `flags`."""
    return [f"{flag}={value}" if value else flag for flag, value in values.items()]


def check(arguments: list[str]) -> None:
    """Fails if `reverb_server` refuses its arguments."""
    with Program(COMMAND, *arguments, "--check") as program:
        assert program.ended() == 0, program.errors


class Unit:
    """A unit of systemd."""

    def __init__(self, path: pathlib.Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        lines = [line for line in self.text.splitlines() if not line.startswith(("#", ";", "["))]
        joined = "\n".join(lines).replace("\\\n", " ")
        self.settings = [tuple(line.split("=", 1)) for line in joined.splitlines() if line.strip()]

    def __getitem__(self, name: str) -> str:
        (value,) = (value for key, value in self.settings if key == name)
        return value

    def command(self) -> list[str]:
        """The program that it starts, and its arguments."""
        return shlex.split(self["ExecStart"])

    def seconds(self, name: str) -> int:
        """A duration such as `5min`."""
        number, unit = re.fullmatch(r"(\d+)(\w+)", self[name]).groups()
        return int(number) * _SECONDS[unit]
