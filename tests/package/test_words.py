# SPDX-License-Identifier: Apache-2.0
"""Names of tests are short, so that a list of failures has one line for each."""

import pathlib
import re

TESTS = pathlib.Path(__file__).parents[1]


def test_names_of_tests_have_at_most_60_characters():
    names = re.compile(r"^ *(?:async )?def (test_\w{56,})", re.MULTILINE)
    texts = (path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py"))
    assert not [name for text in texts for name in names.findall(text)]
