# SPDX-License-Identifier: Apache-2.0
"""Steps that change or describe tables."""

from __future__ import annotations

import pathlib
import re
from typing import Any

from hypothesis import strategies as st

from strategies.tables import priorities

_ordinals = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def _mutations(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    updates = draw(st.one_of(_ordinals, st.none()))
    return {
        "do": "mutate",
        "table": draw(st.sampled_from(names)),
        "updates": updates,
        "priorities": [draw(priorities) for _ in updates or []],
        "deletes": draw(st.one_of(_ordinals, st.none())),
    }


# The names of `interpreter/mistakes.py`, which only runs where TensorFlow is.
_MISTAKES = re.findall(
    r'^    "([^"]+)": lambda',
    (pathlib.Path(__file__).parents[1] / "interpreter" / "mistakes.py").read_text(),
    re.MULTILINE,
)


@st.composite
def tf_updates(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    """Returns a `TFClient.update_priorities`."""
    updates = draw(_ordinals)
    return {
        "do": "tf_update",
        "table": draw(st.sampled_from(names)),
        "mode": draw(st.sampled_from(["eager", "function", "session"])),
        "updates": updates,
        "priorities": [draw(priorities) for _ in updates],
    }


def controls(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Returns infos, mutations, resets, limiter questions, checkpoints and restarts."""
    table = st.sampled_from(names)
    info = st.just({"do": "info"})
    can = st.fixed_dictionaries(
        {
            "do": st.just("can"),
            "table": table,
            "what": st.sampled_from(["sample", "insert"]),
            "count": st.integers(1, 4),
        }
    )
    return st.one_of(
        info,
        can,
        _mutations(names),
        _mutations(names),
        st.fixed_dictionaries({"do": st.just("reset"), "table": table}),
        st.fixed_dictionaries({"do": st.just("mistake"), "what": st.sampled_from(_MISTAKES)}),
        tf_updates(names),
        st.just({"do": "checkpoint"}),
        st.just({"do": "restart"}),
    )
