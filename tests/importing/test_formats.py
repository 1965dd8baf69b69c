# SPDX-License-Identifier: Apache-2.0
"""Every place that names the formats of datasets names all that the table of formats has."""

import pathlib
import re

import pytest

from reverb import command, datasets
from reverb.datasets.formats import FORMATS, SAVED, imported

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "datasets.md").read_text(encoding="utf-8")
SOURCES = [f"{name}:{it.dataset}" for name, it in FORMATS.items()]


def tables(page):
    """The tables of a page: rows of cells."""
    for part in re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE):
        yield [line.strip("|").split(" | ") for line in part.splitlines()]


def options(text):
    return [f"--{name.replace('_', '-')}" for name in text]


def help_of(name, capsys):
    with pytest.raises(SystemExit):
        command.main([name, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_its_source_and_its_save(name):
    assert callable(imported(FORMATS[name].source))
    assert name not in SAVED or callable(imported(SAVED[name].save))


@pytest.mark.parametrize("name", SAVED)
def test_a_format_has_its_tests(name):
    module = SAVED[name].source.partition(".")[0]
    assert (ROOT / "tests" / "with_datasets" / f"test_{module}.py").is_file()


@pytest.mark.parametrize("name", FORMATS)
def test_the_changelog_names_every_format(name):
    assert re.search(
        rf"\b{name}\b", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.IGNORECASE
    )


def test_the_page_begins_with_the_formats():
    first = next(tables(PAGE))[2:]
    assert [re.findall("`(.*)`", row[0]) for row in first] == [[it] for it in SOURCES]
    needs = {row[0].strip("` |").partition(":")[0]: row[2] for row in first}
    assert {name for name, text in needs.items() if f".[{name}" in text} == set(FORMATS) - {"npz"}


def test_a_table_of_the_page_names_every_format():
    found = []
    for head, _, *rows in tables(PAGE):
        if "`--format`" in head[0]:
            continue
        for cells in (head, [row[0] for row in rows]):
            names = {it for cell in cells for it in re.findall(r"`(\w+)(?::[A-Z_]+)?`", cell)}
            if len(names & set(FORMATS)) > 1:
                found.append(names & set(FORMATS))
    assert found == [set(FORMATS)] * 5


def test_the_page_has_the_options_of_every_export():
    (rows,) = (it for it in tables(PAGE) if "`--format`" in it[0][0])
    found = {row[0].strip("` |"): re.findall(r"--[\w-]+", row[2]) for row in rows[2:]}
    assert found == {name: options(it.options) for name, it in SAVED.items()}


def test_the_page_about_exports_names_the_formats_of_episodes():
    page = (ROOT / "docs" / "howto" / "export.md").read_text(encoding="utf-8")
    (names,) = re.findall(r"\(`--format (.*?)\)", page)
    assert re.findall(r"\w+", names) == list(SAVED)


def test_the_docstrings_name_the_formats():
    texts = [" ".join(str(it.__doc__).split()) for it in (datasets.episodes, datasets.save)]
    for name, it in FORMATS.items():
        assert f"`{name}:{it.dataset}`" in texts[0]
        assert not it.has_splits or re.search(rf"split: .*`{name}:`", texts[0])
    for name, it in SAVED.items():
        assert f"`{name}:{'ID' if it.by_id else 'PATH'}`" in texts[1]
        assert all(f"`{option}`" in texts[1] for option in it.options)


def test_the_help_of_the_commands_names_the_formats(capsys):
    found = help_of("import", capsys)
    for source, it in zip(SOURCES, FORMATS.values(), strict=True):
        assert f"{source} {it.help}" in found
    found = help_of("export", capsys)
    assert re.search(r"--format \{(.*?)\}", found)[1].split(",")[3:] == list(SAVED)
    for name, it in SAVED.items():
        for option in options(it.options):
            assert re.search(rf"{option} [A-Z_]+ [^-]* for [\w ]*\b{name}\b", found), option
