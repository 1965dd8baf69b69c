# SPDX-License-Identifier: Apache-2.0
"""The snippets of the README and of the pages in docs/ run as they stand."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/**/*.md"))]

# Snippets that a test runs. The words after `python` name a library; each has a test beside it.
RUN = {
    "python",
    "python tensorflow",
    "python tf-agents",
    "python acme",
    "python ray",
    "python gymnasium",
    "python torch",
    "python jax",
    "python sb3",
    "python torchrl",
}
# Blocks that are only shown. `python shown` is for Python that cannot run by itself.
SHOWN = {"python shown", "sh", "console", "text", "yaml"}


def test_snippets_run(run_snippets):
    assert run_snippets("") == [
        "README.md",
        "docs/concepts.md",
        "docs/howto/asyncio.md",
        "docs/howto/changing.md",
        "docs/howto/checkpoints.md",
        "docs/howto/connections.md",
        "docs/howto/export.md",
        "docs/howto/groups.md",
        "docs/howto/logs.md",
        "docs/howto/memory.md",
        "docs/howto/prioritized.md",
        "docs/howto/runs.md",
        "docs/howto/securing.md",
        "docs/howto/server.md",
        "docs/howto/testing.md",
        "docs/howto/waiting.md",
        "docs/howto/watching.md",
    ]


def test_a_longer_quick_start_does_not_wait_for_itself(run_snippets, tmp_path):
    text = README.read_text(encoding="utf-8")
    assert "in range(20):" in text
    (tmp_path / "README.md").write_text(text.replace("in range(20):", "in range(2000):"))
    assert run_snippets("", tmp_path) == ["README.md"]


def test_snippets_for_acme_run(run_snippets):
    assert run_snippets(" acme") == ["docs/howto/acme.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_says_whether_it_is_run(page):
    fences = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0
    for info, end in zip(fences[::2], fences[1::2], strict=True):
        assert end == ""
        assert info in RUN | SHOWN or re.match(r"\{\S+\}", info)


def test_the_readme_is_short_and_begins_with_the_commands():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 200
    for command in ("make demo", "make test", "pip install ."):
        assert any(line.startswith(command) for line in lines[:60])


def test_snippets_keep_their_line_numbers(run_snippets, tmp_path):
    text = "# Title\n\n```python\na = 1\n```\n\n```python\na / 0\n```\n"
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(ZeroDivisionError) as caught:
        run_snippets("", tmp_path)
    assert caught.traceback[-1].lineno + 1 == text.splitlines().index("a / 0") + 1
