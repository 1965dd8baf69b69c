# SPDX-License-Identifier: Apache-2.0
"""Programs and differences as text for people."""

from __future__ import annotations

import json
from typing import Any

from comparison import Difference

_LONGEST = 1500


def describe(program: dict[str, Any], difference: Difference) -> str:
    """Returns a program as a script, and what the packages gave at the step that differs."""
    return "\n".join(
        [
            f"{difference.kind}, at step {difference.step} of:",
            *_script(program),
            f"dm-reverb: {_short(difference.theirs)}",
            f"here:      {_short(difference.ours)}",
        ]
    )


def _script(program: dict[str, Any]) -> list[str]:
    lines = [
        f"  # {program['servers']} servers, {program['place']}",
        f"  step = {_nest(program['schema'])}",
    ]
    for table in program["tables"]:
        options = ", ".join(f"{key}={value!r}" for key, value in table.items() if key != "make")
        lines.append(f"  reverb.{table['make']}({options})")
    for number, step in enumerate(program["steps"]):
        options = [f"{key}={value!r}" for key, value in step.items() if key not in ("do", "body")]
        lines.append(f"  {number}: {step['do']}({', '.join(options)})")
        for name, *arguments in step.get("body", []):
            lines.append(f"       .{name}({', '.join(map(repr, arguments))})")
    return lines


def _nest(schema: Any) -> str:
    ((kind, content),) = schema.items()
    if kind == "leaf":
        return f"{content[0]}{content[1]}"
    if isinstance(content, dict):
        return f"{kind}({', '.join(f'{key}={_nest(part)}' for key, part in content.items())})"
    return f"{kind}({', '.join(map(_nest, content))})"


def _short(outcome: Any) -> str:
    text = json.dumps(outcome)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text)} characters)"
