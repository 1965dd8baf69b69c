# SPDX-License-Identifier: Apache-2.0
"""A Dockerfile and its list of ignored files, as far as ours use their languages."""

from __future__ import annotations

import fnmatch
import json
import pathlib
import re


class Dockerfile:
    """The instructions of a Dockerfile, by stage.

    Attributes:
      stages: For each stage, its instructions as pairs of a word and the rest.
    """

    def __init__(self, path: pathlib.Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        self.stages: list[list[tuple[str, str]]] = []
        for line in text.replace("\\\n", " ").splitlines():
            if not line.strip():
                continue
            word, rest = line.split(None, 1)
            if word == "FROM":
                self.stages.append([])
            self.stages[-1].append((word, " ".join(rest.split())))

    def all(self, word: str, stage: int = -1) -> list[str]:
        """The arguments of an instruction, in order."""
        return [rest for name, rest in self.stages[stage] if name == word]

    def one(self, word: str) -> str:
        """The argument of the only instruction of a kind in the last stage."""
        (rest,) = self.all(word)
        return rest

    def command(self) -> list[str]:
        """The program that the image runs, and its arguments."""
        return json.loads(self.one("CMD"))

    def environment(self) -> dict[str, str]:
        """The variables of the last stage."""
        return dict(re.findall(r"(\w+)=(\S+)", " ".join(self.all("ENV"))))


def is_sent(ignore: pathlib.Path, path: str) -> bool:
    """Whether a file is part of the context of a build; the last rule that matches counts."""
    sent = True
    for rule in ignore.read_text(encoding="utf-8").splitlines():
        if not rule or rule.startswith("#"):
            continue
        pattern = rule.removeprefix("!")
        if _matches(path, pattern):
            sent = rule.startswith("!")
    return sent


def _matches(path: str, pattern: str) -> bool:
    """Whether a pattern names a file, or a directory above it."""
    parts = path.split("/")
    if pattern.startswith("**/"):
        return any(fnmatch.fnmatchcase(part, pattern[3:]) for part in parts)
    assert "/" not in pattern
    return fnmatch.fnmatchcase(parts[0], pattern)
