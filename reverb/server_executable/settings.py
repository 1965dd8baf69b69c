# SPDX-License-Identifier: Apache-2.0
"""Settings of a server: flags win over the environment, and the environment over the config."""

import dataclasses
import errno
import io
import pathlib
from collections.abc import Mapping
from typing import Any

from reverb._checks.plain_files import MAX_BYTES, read_file
from reverb.server_executable.options import OPTIONS, Option, option_named
from reverb.server_executable.server_config import ParsedConfig, read_config

__all__ = ["ConfigSource", "Given", "Setting", "Settings", "read_settings"]


@dataclasses.dataclass(frozen=True)
class ConfigSource:
    """Source of the config: a file, or the text itself.

    Attributes:
      origin: The flag or the variable that gives it, for example `--config-file`.
      path: The file, or `None`.
      text: The config itself, if there is no file.
      is_read_again: Whether it has been read before: a pipe would be empty now.
    """

    origin: str
    path: pathlib.Path | None = None
    text: str = ""
    is_read_again: bool = False

    @property
    def name(self) -> str:
        """Name in messages: the path, or the flag or variable."""
        return self.origin if self.path is None else str(self.path)

    def read(self) -> str:
        """Returns the text of the config.

        Raises:
          OSError: If the file cannot be read, or has more than 16 MiB.
          UnicodeDecodeError: If it is not UTF-8.
        """
        if self.path is None:
            return self.text
        if self.is_read_again:
            content = read_file(self.path)
        else:
            # A pipe is fine: `--config-file <(make-config)` in a shell.
            with self.path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise OSError(errno.EFBIG, f"is larger than {MAX_BYTES} bytes", str(self.path))
        # Decodes like a text file: converts all line ends to `\n`.
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()


@dataclasses.dataclass(frozen=True)
class Given:
    """Command line and environment of the start, which a reload does not change.

    Attributes:
      source: Source of the config.
      flags: Values of flags as texts, by the option's name.
      variables: Values of environment variables as texts, by the option's name.
    """

    source: ConfigSource
    flags: Mapping[str, str]
    variables: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The value of an option, and its origin.

    Attributes:
      value: The value; `None`: no value.
      origin: For example `flag --port`, `environment REVERB_SERVER_PORT`, `server.textproto, line
        3` or `default`.
      line: Line in the config, if the value comes from there.
    """

    value: Any
    origin: str
    line: int | None = None


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings of a server.

    Attributes:
      options: The settings of all options, by the option's name.
      parsed: The config. Its fields for options are already merged into `options`.
      problems: Problems that keep a server from starting, each a line.
      notes: Remarks on settings without effect, each a line.
    """

    options: Mapping[str, Setting]
    parsed: ParsedConfig
    problems: list[str]
    notes: list[str]

    def __getitem__(self, name: str) -> Any:
        return self.options[name].value

    @property
    def tables(self) -> list[Any]:
        """The `PriorityTableCheckpoint` messages of the config."""
        return list(self.parsed.config.tables)


def read_settings(given: Given) -> Settings:
    """Reads the config and combines it with flags and environment.

    The result has all problems of all three.
    """
    source = given.source
    problems: list[str] = []
    unreadable: list[str] = []
    try:
        text = source.read()
    except (OSError, UnicodeDecodeError) as error:
        unreadable.append(f"cannot read {source.origin} {source.name}: {error}")
        text = ""
    parsed = read_config(text)
    options = {}
    for option in OPTIONS:
        setting, option_problems = _choose(option, given, parsed)
        options[option.name] = setting
        problems += option_problems
    problems += unreadable or [f"{source.name}, {note}" for note in parsed.problems]
    if parsed.is_complete and not unreadable:
        problems += _missing_needs(options) + _index_problems(options)
    return Settings(
        options, parsed, problems, notes=[f"{source.name}, {note}" for note in parsed.unused]
    )


def _choose(option: Option, given: Given, parsed: ParsedConfig) -> tuple[Setting, list[str]]:
    """Returns the setting of an option, and the problems with its flag and its variable."""
    chosen, problems = None, []
    for texts, origin, name in (
        (given.flags, f"flag {option.flag}", f"argument {option.flag}"),
        (given.variables, f"environment {option.variable}", option.variable),
    ):
        if option.name in texts:
            try:
                setting = Setting(option.parse(texts[option.name]), origin)
            except ValueError as error:
                problems.append(f"{name}: {error}")
            else:
                chosen = chosen or setting
    if chosen is not None:
        return chosen, problems
    value = option.read(parsed.config)
    if value is None:
        return Setting(option.default, "default"), problems
    line = parsed.line_of(option.field)
    return Setting(value, f"{given.source.name}, line {line}", line), problems


def _index_problems(options: Mapping[str, Setting]) -> list[str]:
    index, num_shards = options["shard_index"], options["num_shards"]
    if index.value is None or num_shards.value is None or index.value < num_shards.value:
        return []
    name = option_named("shard_index").field if index.line else "the index of the shard"
    return [
        f"{index.origin}: {name} must be below the number of shards, {num_shards.value} "
        f"({num_shards.origin}), got {index.value}"
    ]


def _missing_needs(options: Mapping[str, Setting]) -> list[str]:
    problems = []
    for option in OPTIONS:
        setting = options[option.name]
        if setting.value == option.default:
            continue
        for needed in map(option_named, option.needs):
            if options[needed.name].value is not None:
                continue
            if setting.line is not None:
                problems.append(f"{setting.origin}: {option.field} needs {needed.field}")
            else:
                problems.append(f"{setting.origin} needs {needed.flag}")
    return problems
