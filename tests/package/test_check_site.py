# SPDX-License-Identifier: Apache-2.0
"""tools/check_site.py finds the dead links of a built site."""

import pathlib
import subprocess
import sys

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "check_site.py"


def check(site):
    return subprocess.run([sys.executable, TOOL, site], capture_output=True, text=True, check=False)


def test_files_and_anchors_that_are_missing_are_named(tmp_path):
    (tmp_path / "index.html").write_text(
        '<a href="page.html#here">1</a><a href="page.html#there">2</a><img src="no.png">'
        '<a href="https://example.org/no">3</a><a href="#">4</a>'
    )
    (tmp_path / "page.html").write_text('<h1 id="here">page</h1>')
    result = check(tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "dead link in index.html: page.html#there",
        "dead link in index.html: no.png",
    ]


def test_a_site_without_dead_links_passes(tmp_path):
    (tmp_path / "rust").mkdir()
    (tmp_path / "rust" / "index.html").write_text('<a href="left-to-rustdoc.html">1</a>')
    (tmp_path / "index.html").write_text('<a href="rust/index.html">1</a>')
    assert check(tmp_path).returncode == 0
