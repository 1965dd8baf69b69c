# SPDX-License-Identifier: Apache-2.0
"""Puts a table of its methods and properties on top of each class: a name, and its summary.

The summary is the first paragraph of the docstring. Methods of the classes in `method_groups` are
grouped by task; those of other classes stand in the order of the page.
"""

from collections.abc import Iterable, Iterator

from docutils import nodes
from method_groups import GROUPS
from sphinx import addnodes
from sphinx.application import Sphinx

# Fewer are seen at once.
_MIN_ROWS = 3
_KINDS = {"method", "property", "attribute", "classmethod", "staticmethod"}


def add_tables(app: Sphinx, page: nodes.document) -> None:
    """Adds the tables of one page."""
    for description in page.findall(addnodes.desc):
        if description.get("objtype") != "class":
            continue
        members = {name: row for name, row in _rows(description)}
        if len(members) < _MIN_ROWS:
            continue
        signature = description[0]
        groups = GROUPS.get(f"{signature['module']}.{signature['fullname']}", {"": list(members)})
        rows = []
        for title, names in groups.items():
            rows += [_title_row(title)] if title else []
            rows += [members[name] for name in names if name in members]
        content = description[-1]
        # The first paragraph says what the class is.
        first = 1 if content and isinstance(content[0], nodes.paragraph) else 0
        content.insert(first, _table(rows))


def _rows(description: addnodes.desc) -> Iterator[tuple[str, nodes.row]]:
    """Yields the name and the row of each method and property with a docstring."""
    for member in description[-1]:
        if not isinstance(member, addnodes.desc) or member.get("objtype") not in _KINDS:
            continue
        signature, content = member[0], member[-1]
        if not content or not isinstance(content[0], nodes.paragraph) or not signature["ids"]:
            continue
        name = signature["fullname"].rpartition(".")[2]
        link = nodes.reference("", "", internal=True, refid=signature["ids"][0])
        link += nodes.literal("", name)
        summary = [child.deepcopy() for child in content[0]]
        yield name, _row([link], summary)


def _row(*cells: Iterable[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def _title_row(title: str) -> nodes.row:
    title_node = nodes.paragraph("", "", nodes.strong("", title))
    return nodes.row("", nodes.entry("", title_node, morecols=1))


def _table(rows: list[nodes.row]) -> nodes.table:
    columns = [nodes.colspec(colwidth=30), nodes.colspec(colwidth=70)]
    group = nodes.tgroup("", *columns, nodes.tbody("", *rows), cols=2)
    return nodes.table("", group, classes=["methods"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the tables when a page was read."""
    app.connect("doctree-read", add_tables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
