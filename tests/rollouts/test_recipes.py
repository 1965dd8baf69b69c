# SPDX-License-Identifier: Apache-2.0
"""Recipes of the page about rollouts are as long as it says; they are run with all pages."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[2] / "docs/howto/rollouts.md"


def test_recipes_have_as_many_lines_as_the_page_says():
    said, counted = {}, {}
    for section in re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name, number = re.match(r"(.*), (\d+) lines\n", section).groups()
        block = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
        body = re.split(r"^(?:def|class) .*:\n", block, flags=re.MULTILINE)[-1]
        said[name] = int(number)
        counted[name] = sum(bool(line.strip()) for line in body.splitlines())
    assert len(said) == 9
    assert counted == said
