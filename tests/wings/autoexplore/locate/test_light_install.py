"""`locate` as it comes: what a light install answers with, and what it lacks."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]

LIGHT = """
import re, sys
from importlib.metadata import packages_distributions, requires

wanted, allowed = sys.argv[1].split(","), {"reflectrl", "pip"}
while wanted:  # what the packages themselves require, but not their extras
    name = re.match("[A-Za-z0-9_.-]+", wanted.pop())[0].lower().replace("_", "-")
    if name not in allowed:
        allowed.add(name)
        wanted += [one for one in requires(name) or () if ";" not in one]
homes = packages_distributions()

class Missing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in homes and not any(home.lower().replace("_", "-") in allowed for home in homes[top]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from reflectrl.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""Runs the command line as if nothing were installed but some packages."""


def in_a_light_install(*words: str) -> subprocess.CompletedProcess[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    packages = re.search(r"^LIGHT := (.*)$", makefile, re.MULTILINE)
    assert packages is not None
    program = [sys.executable, "-c", LIGHT, packages[1].replace(" ", ","), *words]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_it_answers_where_only_that_is_installed_what_make_locate_installs() -> None:
    question = ["locate", "where is BM25 computed?", "--repo", str(ROOT / "src"), "--json"]
    done = in_a_light_install(*question)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "search"


def test_what_a_light_install_lacks_is_said_in_one_line(tmp_path: Path) -> None:
    done = in_a_light_install("run", "taxi", "--folder", str(tmp_path / "run"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert " is not installed here, only what `locate` needs; for the rest, in the checkout" in done.stderr


def test_a_reader_needs_torch() -> None:
    done = in_a_light_install("locate", "where is BM25 computed?", "--repo", str(ROOT / "src"), "--read")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "a reader needs torch; in the checkout of reflectrl: pip install ." in done.stderr


def test_no_torch_is_imported() -> None:
    code = (
        "import sys; from reflectrl.cli import main; main(sys.argv[1:]); print('torch' in sys.modules, file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, "locate", "where is BM25 computed?", "--repo", str(ROOT / "src"), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["method"] == "search" and answer["files"] and done.stderr.endswith("False\n")
