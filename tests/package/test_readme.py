# SPDX-License-Identifier: Apache-2.0
"""The snippets of the README and of the pages in docs/ run as they stand."""

import pathlib
import re

import pytest

from support.rolling_restart import free_ports
from support.shell_blocks import run_shell_blocks, shell_blocks

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/**/*.md"))]
PAGES_WITH_SHELL_BLOCKS = [page for page in PAGES if shell_blocks(page.read_text("utf-8"))]

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
    "python transferqueue",
}
# Blocks that are only shown: a command with what it printed, a file, a picture.
SHOWN = {"console", "text", "yaml"}
# Code that cannot run by itself says why: `sh shown: it needs a cluster`.
SHOWN_CODE = re.compile(r"(python|sh) shown: \w.*")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def test_snippets_run(run_snippets):
    assert run_snippets("") == [
        "README.md",
        "docs/concepts.md",
        "docs/howto/asyncio.md",
        "docs/howto/changing.md",
        "docs/howto/checkpoints.md",
        "docs/howto/choosing.md",
        "docs/howto/connections.md",
        "docs/howto/datasets.md",
        "docs/howto/export.md",
        "docs/howto/groups.md",
        "docs/howto/logs.md",
        "docs/howto/memory.md",
        "docs/howto/prioritized.md",
        "docs/howto/reading.md",
        "docs/howto/rollouts.md",
        "docs/howto/runs.md",
        "docs/howto/securing.md",
        "docs/howto/server.md",
        "docs/howto/store.md",
        "docs/howto/testing.md",
        "docs/howto/trl.md",
        "docs/howto/troubleshooting.md",
        "docs/howto/waiting.md",
        "docs/howto/watching.md",
        "docs/howto/windows.md",
        "docs/index.md",
        "docs/quickstart.md",
    ]


def test_a_longer_quick_start_does_not_wait_for_itself(run_snippets, tmp_path):
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert "in range(20):" in text
    (tmp_path / "README.md").write_text(text.replace("in range(20):", "in range(2000):"))
    assert run_snippets("", tmp_path) == ["README.md"]


def test_snippets_for_acme_run(run_snippets):
    assert run_snippets(" acme") == ["docs/howto/acme.md"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_whether_it_is_run(page):
    fences = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0
    for info, end in zip(fences[::2], fences[1::2], strict=True):
        assert end == ""
        is_known = info in RUN | SHOWN | {"sh"} or SHOWN_CODE.fullmatch(info)
        assert is_known or re.match(r"\{\S+\}", info), info


def test_pages_with_shell_blocks():
    assert [name_of(page) for page in PAGES_WITH_SHELL_BLOCKS] == [
        "docs/howto/changing.md",
        "docs/howto/connections.md",
        "docs/howto/export.md",
        "docs/howto/logs.md",
        "docs/howto/securing.md",
        "docs/howto/server.md",
        "docs/howto/troubleshooting.md",
        "docs/howto/watching.md",
    ]


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("page", PAGES_WITH_SHELL_BLOCKS, ids=name_of)
def test_shell_blocks_run(page, tmp_path):
    run_shell_blocks(page.read_text(encoding="utf-8"), tmp_path, tuple(free_ports(2)))


def test_a_shell_block_that_fails_is_shown(tmp_path):
    text = "```sh\nreverb inspect localhost:8000 --table missing\n```\n"
    with pytest.raises(AssertionError, match="missing"):
        run_shell_blocks(text, tmp_path, tuple(free_ports(2)))


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
