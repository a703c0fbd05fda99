"""No regular expression of the package takes quadratic time, since most of them read texts of strangers."""

import json
import subprocess
import sys
from pathlib import Path

BOUNDED = {
    r"\[\^/\]\*(": "expressions that pathspec writes, in which every bracket has an end",
    r"(\\.)|(?!\[": "expressions that pathspec writes, in which every bracket has an end",
}
"""Beginning of an expression that may be slow → why no stranger's text reaches it."""


def test_every_expression_takes_time_in_proportion_to_the_text():
    """Texts are made of each expression's own literals and classes. Eight times the text takes eight times as long."""
    program = Path(__file__).with_name("expressions.py")
    done = subprocess.run([sys.executable, "-W", "ignore", program], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    *slow, total = map(json.loads, done.stdout.splitlines())
    assert total["expressions"] > 250  # the walk finds them
    assert [each for each in slow if not each["pattern"].startswith(tuple(BOUNDED))] == []
