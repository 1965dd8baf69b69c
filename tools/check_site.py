# SPDX-License-Identifier: Apache-2.0
"""Finds dead links inside a built documentation site: files and anchors that are not there.

    python tools/check_site.py site

Sphinx checks the links that it makes; this also checks those written in HTML, to the Rust reference
for example. Links to other sites are not followed. The pages below rust/ are rustdoc's business.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

_ATTRIBUTES = {"a": "href", "img": "src", "link": "href", "script": "src"}


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        link = values.get(_ATTRIBUTES.get(tag, ""))
        if link:
            self.links.append(link)


@functools.cache
def _read(path: pathlib.Path) -> _Page:
    return _Page(path.read_text(encoding="utf-8"))


def dead_links(site: pathlib.Path) -> list[str]:
    """Returns a line for each dead link: the page, and the link as it is written there."""
    site = site.resolve()
    return [
        f"{path.relative_to(site)}: {link}"
        for path in sorted(site.rglob("*.html"))
        if path.relative_to(site).parts[0] != "rust"
        for link in _read(path).links
        if not _is_alive(path, link)
    ]


def _is_alive(page: pathlib.Path, link: str) -> bool:
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return True
    target = page.parent.joinpath(unquote(url.path)).resolve() if url.path else page
    if not target.is_file():
        return False
    # `#` alone is the top of the page.
    if not url.fragment or target.suffix != ".html":
        return True
    return unquote(url.fragment) in _read(target).anchors


def main() -> int:
    """Prints the dead links; returns 1 if there are any."""
    (site,) = sys.argv[1:]
    dead = dead_links(pathlib.Path(site))
    for line in dead:
        print(f"dead link in {line}", file=sys.stderr)
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
