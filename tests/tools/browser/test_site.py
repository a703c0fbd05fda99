"""The style of the documentation's site, in a real browser: references can be read on a telephone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CSS = Path(__file__).parents[3] / "docs" / "site.css"
PAGE = """<!doctype html><meta name="viewport" content="width=device-width"><style>{}</style>
<article class="md-typeset"><table>
<thead><tr><th>key</th><th>type</th><th>default</th><th></th></tr></thead>
<tbody><tr><td><code>seeds</code></td><td>list (each whole number), none of them twice</td><td><code>[0]</code></td>
<td id="words">Random seeds. One complete training is done per seed.</td></tr></tbody>
</table></article>"""
RIGHT = "document.getElementById('words').getBoundingClientRect().right"
HEAD = "getComputedStyle(document.querySelector('thead')).display"


def test_the_words_of_a_reference_do_not_begin_beyond_a_narrow_page(tmp_path: Path, browser: Any) -> None:
    page = tmp_path / "page.html"
    page.write_text(PAGE.format(CSS.read_text(encoding="utf-8")), encoding="utf-8")
    browser.open(page, width=390)
    assert browser.run(RIGHT) <= 390 and browser.run(HEAD) == "none"
    browser.open(page, width=1400)
    assert browser.run(HEAD) == "table-header-group"
