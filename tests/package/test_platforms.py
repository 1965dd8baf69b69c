# SPDX-License-Identifier: Apache-2.0
"""Systems, Pythons and TensorFlow releases that documents claim are those that are tested."""

import re

from support.sources import ROOT, project


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


PROJECT = project()


def classified(prefix):
    """Ends of the classifiers that begin so."""
    names = PROJECT["classifiers"]
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def rows(page):
    """Rows of the tables of a page, as lists of cells."""
    lines = (line for line in read(page).splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def versions(text):
    return set(re.findall(r"\d+\.\d+", text))


def test_the_systems_are_those_with_tests():
    platforms = [row for row in rows("docs/install.md") if row[0].startswith(("Linux", "Windows"))]
    tested = {row[0] for row in platforms if row[2] == "tested"}
    assert tested == {"Linux x86-64"}
    assert classified("Operating System :: ") == {"POSIX :: Linux"}


def test_the_pythons_are_those_with_tests():
    workflow = read(".github/workflows/tests.yml")
    lines = re.findall(r"^ *python(?:-version)?: (?!\$)(.*)", workflow, re.MULTILINE)
    tested = versions(" ".join(lines))
    assert classified("Programming Language :: Python :: 3.") == {it[2:] for it in tested}
    (named,) = re.findall(r"with Python ([\d., and]+)\. ", read("docs/install.md"))
    assert versions(named) == tested
    (more,) = re.findall(r"^PYTHONS \?= (.*)", read("Makefile"), re.MULTILINE)
    assert versions(more) <= tested


def test_the_tensorflows_are_those_with_tests():
    (releases,) = re.findall(r"^TF \?= (.*)", read("Makefile"), re.MULTILINE)
    text = next(row[1] for row in rows("docs/install.md") if row[1].startswith("TensorFlow 2"))
    oldest, _, tested = text.partition(" or later ")
    (extra,) = PROJECT["optional-dependencies"]["tensorflow"]
    assert extra == f"tensorflow>={oldest.removeprefix('TensorFlow ')}"
    assert versions(tested) == versions(releases)
