# SPDX-License-Identifier: Apache-2.0
"""Private: the formats of datasets, each a row of `FORMATS` and a module of its own.

A module is imported when its format is used.
"""

import importlib
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from reverb import errors

__all__ = ["FORMATS", "SAVED", "Format", "Option", "imported", "split_format"]


class Option(NamedTuple):
    """An option of `reverb.datasets.save` and `reverb export`, whose help has this line."""

    help: str
    parse: Callable[[str], Any] = str
    is_needed: bool = False


class Format(NamedTuple):
    """A format of datasets.

    Attributes:
      help: A line for the help of `reverb import`.
      source: The class that reads it, with its module; see `reverb.datasets.sources.Source`.
      dataset: Kind of the name of a dataset, which follows the format and a colon in a source.
      has_splits: Whether datasets have splits.
      save: The function that writes it, with its module; empty: it is only read.
      by_id: Whether a dataset is written under an id; otherwise it is written to a path.
      options: The options of `save`, by their names.
    """

    help: str
    source: str
    dataset: str = "ID_OR_PATH"
    has_splits: bool = False
    save: str = ""
    by_id: bool = False
    options: Mapping[str, Option] = MappingProxyType({})


FORMATS = {
    "npz": Format(".npz files of `reverb export`, or with flags", "npz.NpzSource", "PATH"),
    "parquet": Format(
        "Parquet files with an episode or a step a row", "parquet.ParquetSource", "PATH"
    ),
    "minari": Format(
        "a dataset of Minari on this machine",
        "minari.MinariSource",
        save="minari_writer.save",
        by_id=True,
        options={
            "env": Option("id of the environment that has the spaces (else they have no bounds)"),
            "data_format": Option("hdf5, arrow or parquet (hdf5)"),
        },
    ),
    "hf": Format(
        "a dataset of Hugging Face",
        "hugging_face.HuggingFaceSource",
        has_splits=True,
        save="hugging_face.save",
    ),
    "rlds": Format(
        "a dataset of RLDS on this machine",
        "rlds.RldsSource",
        has_splits=True,
        save="rlds_writer.save",
        options={"discount": Option("discount of a step (0.99)", float)},
    ),
    "lerobot": Format(
        "a dataset of LeRobot 3.0 on this machine",
        "lerobot.LeRobotSource",
        save="lerobot_writer.save",
        options={
            "fps": Option("frames a second", int, is_needed=True),
            "task": Option("task of all episodes"),
            "robot_type": Option("kind of the robot"),
        },
    ),
}

# The formats that are written.
SAVED = {name: it for name, it in FORMATS.items() if it.save}


def imported(place: str) -> Any:
    """Returns a class or a function of a module of this package, such as `npz.NpzSource`."""
    module, _, name = place.partition(".")
    return getattr(importlib.import_module(f"reverb.datasets.formats.{module}"), name)


def split_format(argument: str, value: str, formats: Collection[str]) -> tuple[str, str]:
    """Splits a name such as `minari:ID` into its format and the rest.

    Raises:
      InvalidArgumentError: If it begins with none of the formats, or has nothing after it.
    """
    prefix, _, rest = value.partition(":")
    if prefix not in formats or not rest:
        known = ", ".join(f"{it}:" for it in formats)
        raise errors.InvalidArgumentError(
            f"{argument} must begin with a format, one of {known}, got {value!r}"
        )
    return prefix, rest
