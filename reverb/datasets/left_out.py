# SPDX-License-Identifier: Apache-2.0
"""Fields that are left out of episodes, by their names."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tree

from reverb import errors
from reverb._recording.nests import without

__all__ = ["NOTHING", "PARTS", "LeftOut", "name_of", "remedy"]

# The names of the parts of an episode, as columns, D4RL, Minari and others have them.
PARTS = {
    "observation": "observations",
    "observations": "observations",
    "obs": "observations",
    "next_observation": "next_observations",
    "next_observations": "next_observations",
    "next_obs": "next_observations",
    "action": "actions",
    "actions": "actions",
    "reward": "rewards",
    "rewards": "rewards",
    "terminated": "terminated",
    "terminations": "terminated",
    "terminals": "terminated",
    "truncated": "truncated",
    "truncations": "truncated",
    "timeouts": "truncated",
}
# Columns that no field has, and all infos for which a table has no column.
_OTHERS = ("discount", "episode_id", "infos", "values_digest")
_COLUMNS = {
    "observations": "observation",
    "next_observations": "next_observation",
    "actions": "action",
}


class LeftOut:
    """The argument `leave_out`: names of columns, of infos, and of parts such as `observation/a`.

    A part is named by its column, or by its field, such as `observations/a`; an info with `infos/`
    before it, or without. The name of a nest is that of all that is in it.

    Attributes:
      names: The names as they are given.

    Raises:
      InvalidArgumentError: If `names` is a text.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        if isinstance(names, str):
            raise errors.InvalidArgumentError(f"leave_out must be a tuple of names, got {names!r}")
        self.names = tuple(names)
        self._paths = {name: _path(name) for name in self.names}
        self._used: set[str] = set()

    @property
    def has_parts(self) -> bool:
        """Whether anything below a column is left out."""
        return any(len(path) > 1 for path in self._paths.values())

    def has(self, field: str) -> bool:
        """Whether a field is left out, such as `observations/a`, or a nest that it is in."""
        if not self.names:
            return False
        path = _path(field)
        found = [
            name for name, own in self._paths.items() if len(own) > 1 and path[: len(own)] == own
        ]
        self._used.update(found)
        return bool(found)

    def has_column(self, column: str) -> bool:
        """Whether a whole column is left out; `infos` are those that a table has no column for."""
        return _path(column) in self._paths.values()

    def without(self, field: str, nest: object) -> Any:
        """Returns a nest without what is left out; a tuple with a gap becomes a dict."""
        if not self.has_parts:
            return nest
        kept = without(nest, self.has, field)
        if field in _COLUMNS and isinstance(kept, Mapping | tuple) and not tree.flatten(kept):
            self.refuse_all("episodes", field)
        return kept

    def refuse_all(self, place: str, field: str) -> None:
        """Raises `InvalidArgumentError`, because nothing is left of a needed field."""
        raise errors.InvalidArgumentError(
            f"{place}: leave_out = {list(self.names)} leaves nothing of the {field}; keep a part, "
            f"or leave out the column {_COLUMNS[field]!r}"
        )

    @property
    def used(self) -> tuple[str, ...]:
        """The names by which a field was left out so far."""
        return tuple(name for name in self.names if name in self._used)

    @property
    def unused(self) -> list[str]:
        """The names of parts and infos by which none was left out so far."""
        return [it for it, path in self._paths.items() if len(path) > 1 and it not in self._used]

    def check_parts(self, place: str, fields: Iterable[str]) -> None:
        """Checks the names of parts, after all fields were asked for.

        Infos may be in some datasets, and not in others; `check` refuses them at the write.

        Raises:
          InvalidArgumentError: If one is not there; the text names what is: `fields`.
        """
        infos = [name for name in self.unused if self._paths[name][0] not in PARTS]
        self.check(place, fields, infos)

    def check(self, place: str, fields: Iterable[str], others: Collection[str]) -> None:
        """Checks all names, but for `others`, after all fields were asked for.

        Raises:
          InvalidArgumentError: As `check_parts`.
        """
        for name in self.unused:
            if name not in others and self._paths[name][0] != "next_observations":
                known = sorted({name_of(it) for it in fields})
                raise errors.InvalidArgumentError(
                    f"{place}: leave_out names {name!r}, which is not there; there are {known}, "
                    "and the columns of items"
                )


NOTHING = LeftOut()


def remedy(field: str) -> str:
    """Returns the end of the text of an error about a field: how to leave it out, if it can be."""
    first, *rest = _path(field)
    is_needed = not rest or first not in (*_COLUMNS, "infos")
    return "" if is_needed else f"; leave_out=({name_of(field)!r},) leaves it out"


def _path(name: str) -> tuple[str, ...]:
    first, *rest = name.split("/")
    if first in PARTS:
        return (PARTS[first], *rest)
    if first == "infos" or name in _OTHERS:
        return (first, *rest)
    return ("infos", first, *rest)


def name_of(field: str) -> str:
    """Returns what a field is called in `leave_out`: its column, if no other is called so."""
    first, *rest = _path(field)
    if first != "infos":
        return "/".join((_COLUMNS.get(first, first), *rest))
    is_clear = rest and rest[0] not in PARTS and rest[0] not in _OTHERS
    return "/".join(rest if is_clear else (first, *rest))
