"""A certificate for people: a table on the terminal, and a badge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from xml.sax.saxutils import escape

from rich.table import Table

from reflectrl.core.terminal import console, printable_line
from reflectrl.tools.certify.verdict import CHECKS, Certificate

MARKS = {"ok": "ok", "fault": "FAULT", "note": "note", "unknown": "?"}
GOOD, BAD = "#2e7d32", "#b71c1c"
LETTER, HEIGHT, MARGIN = 6.6, 20, 6
"""Width of a letter, and height and margin of a badge, in pixels."""


@contextmanager
def parts_shown() -> Iterator[Callable[[str], None]]:
    """Name the part that is under way, on a terminal, and remove the line at the end."""
    # rich writes past the guard of stdout, which would show the codes of a terminal as text.
    with console(120).status("") as status:
        yield lambda part: status.update(f"{part} ...")


def show(certificate: Certificate) -> None:
    """Print the verdict, and a line for each check."""
    out = console(120)
    table = Table(title=printable_line(verdict(certificate)), title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("finding")
    for finding in certificate.findings:
        words = printable_line(finding.words)
        table.add_row(finding.check, MARKS[finding.state], words)
    out.print(table)
    for finding in certificate.findings:
        # What the coach says of a training that ended low; a terminal would break a long line within a word.
        for line in finding.figures.get("coach", ()):
            out.print(f"coach: {printable_line(line)}", soft_wrap=not out.is_terminal, markup=False, highlight=False)
    for name in certificate.faults:
        print(f"fault: {name}: it should be that {CHECKS[name]}")


def verdict(certificate: Certificate) -> str:
    """Return the verdict in one line."""
    if certificate.is_sound:
        return f"{certificate.env}: sound"
    return f"{certificate.env}: faulty ({', '.join(certificate.faults)})"


def badge(certificate: Certificate) -> str:
    """Return an SVG badge with the verdict. It loads no other files."""
    left, right = "reflectrl certify", "sound" if certificate.is_sound else f"faulty: {', '.join(certificate.faults)}"
    colour = GOOD if certificate.is_sound else BAD
    first, second = (round(len(text) * LETTER + 2 * MARGIN) for text in (left, right))
    middle = HEIGHT * 0.7
    label = escape(f"{certificate.env}: {right}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{first + second}" height="{HEIGHT}" role="img">'
        f"<title>{label}</title>"
        f'<rect width="{first + second}" height="{HEIGHT}" rx="3" fill="#444"/>'
        f'<rect x="{first}" width="{second}" height="{HEIGHT}" rx="3" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{MARGIN}" y="{middle:g}" textLength="{first - 2 * MARGIN}">{escape(left)}</text>'
        f'<text x="{first + MARGIN}" y="{middle:g}" textLength="{second - 2 * MARGIN}">{escape(right)}</text>'
        "</g></svg>\n"
    )
