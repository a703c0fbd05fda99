"""Repositories as people have them: each layout with the right answer."""

import base64
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.live import LiveIndex
from reflectrl.wings.autoexplore.locate.passages import ReadFile
from reflectrl.wings.autoexplore.search import Hit

Files = dict[str, str | bytes]


def write(root: Path, files: Files) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def ask(root: Path, question: str) -> list[Hit]:
    return Engine(root, cached=False).search(question, 5)


FILLER: Files = {f"src/part{n}.py": f"def part_{n}():\n    return {n} * {n}\n" for n in range(6)}


def notebook(cells: list[tuple[str, list[str]]], output: str, indent: int | None = 1) -> str:
    made = [
        {"cell_type": kind, "source": source, "outputs": [{"data": {"image/png": output}}], "metadata": {}}
        for kind, source in cells
    ]
    return json.dumps({"cells": made, "nbformat": 4, "metadata": {}}, indent=indent)


@pytest.mark.parametrize("indent", [1, None])
def test_a_notebook_is_its_cells(tmp_path: Path, indent: int | None) -> None:
    output = base64.b64encode(os.urandom(300_000)).decode() + " kangaroo wombat"
    text = notebook([("markdown", ["# Loading\n"]), ("code", ["def quokka():\n", "    return 1\n"])], output, indent)
    root = write(tmp_path, {"a.ipynb": text, **FILLER})
    assert ask(root, "where is the quokka?")[0].path == "a.ipynb"
    assert ask(root, "kangaroo wombat") == []
    [hit] = [hit for hit in ask(root, "where is the quokka?") if hit.path == "a.ipynb"]
    assert hit.name == "quokka"
    if indent:  # the number of the line in the file itself
        assert "def quokka" in text.split("\n")[(hit.line or 0) - 1]


def test_utf_16(tmp_path: Path) -> None:
    root = write(tmp_path, {"wide.cs": "class Wallaby { // hops far\n}\n".encode("utf-16"), **FILLER})
    [hit] = ask(root, "wallaby that hops")
    assert (hit.path, hit.line, hit.text) == ("wide.cs", 1, "class Wallaby { // hops far")


def test_another_encoding_is_read_and_told(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"old.py": "# l\u00e4uft zur\u00fcck\ndef numbat():\n    return 1\n".encode("latin-1"), **FILLER}
    )
    engine = Engine(root, cached=False)
    assert engine.search("numbat", 1)[0].path == "old.py" and engine.remarks() == [
        "old.py: read as Latin-1, because they are not UTF-8"
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "src/Cart.vue",
            "<template><p/></template>\n<script>\nexport default {\n  methods: {\n    applyVoucher() {\n    }\n"
            "  }\n}\n",
        ),
        ("src/Cart.svelte", "<script>\n  export function applyVoucher() {\n  }\n</script>\n"),
        ("infra/main.tf", 'resource "aws_lambda" "apply_voucher" {\n  memory = 1\n}\n'),
        ("api/shop.proto", "message ApplyVoucher {\n  string code = 1;\n}\n"),
        ("db/schema.sql", "CREATE TABLE apply_voucher (\n  id INT\n);\n"),
        ("game/cart.lua", "local function apply_voucher(code)\n  return code\nend\n"),
        ("lib/cart.ex", "defmodule Cart do\n  def apply_voucher(code), do: code\nend\n"),
        ("src/Cart.hs", "module Cart where\napplyVoucher :: Int -> Int\napplyVoucher x = x\n"),
        ("parse/cart.y", "%%\nint apply_voucher(int code)\n{\n  return code;\n}\n"),
        ("conf/cart.yaml", "apply_voucher: true\nother: 1\n"),
        ("views/cart.html.j2", "{% block apply_voucher %}\n<p>text</p>\n{% endblock %}\n"),
        ("Makefile", "apply-voucher:\n\techo voucher applied\n"),
        (".github/workflows/voucher.yml", "name: apply voucher\non: push\n"),
        ("\u00fcber/apply_voucher.py", "def go():\n    return 1\n"),
    ],
)
def test_every_kind_of_file_is_found_first(tmp_path: Path, name: str, text: str) -> None:
    noise: Files = {"src/router.js": "export const routes = ['cart', 'voucher list']\n", **FILLER}
    root = write(tmp_path, {name: text, **noise})
    question = "which workflow applies a voucher?" if ".github" in name else "where does it apply a voucher?"
    assert ask(root, question)[0].path == name


def test_a_table_of_messages_stands_below_code(tmp_path: Path) -> None:
    messages = json.dumps({"checkout.button": "Pay the invoice", "invoice.pay": "Pay invoice now"}, indent=1)
    code = "def pay_invoice(invoice):\n    return charge(invoice)\n"
    root = write(tmp_path, {"locales/en.json": messages, "shop/billing.py": code, **FILLER})
    assert ask(root, "where is an invoice paid?")[0].path == "shop/billing.py"


def test_a_long_minified_line_takes_no_room(tmp_path: Path) -> None:
    line = "a(" + ",".join(f"b{n}=voucher({n})" for n in range(40_000)) + ")"
    code = "def voucher():\n    return 1\n"
    root = write(tmp_path, {"static/app.min.js": line, "shop/voucher.py": code, **FILLER})
    engine = Engine(root, cached=False)
    assert engine.search("voucher", 1)[0].path == "shop/voucher.py"
    assert engine.remarks() == ["static/app.min.js: searched only in part, because they are long"]


def test_hidden_files_with_secrets_stay_hidden(tmp_path: Path) -> None:
    root = write(tmp_path, {".env": "PASSWORD=numbat12345\n", ".env.example": "PASSWORD=changeme\n", **FILLER})
    assert "password" in str(ask(root, "password")) and LiveIndex(root, cached=False).corpus.paths[0] == ".env.example"
    assert "numbat" not in str(ask(root, "numbat password"))


def test_a_worktree_and_a_submodule(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            ".git": "gitdir: /elsewhere\n",
            ".gitignore": "build/\nbilby*\n",
            "build/out.py": "def bilby():\n    return 1\n",
            "modules/sub/HEAD": "ref: refs/heads/main\n",
            "modules/sub/objects/README": "empty",
            "modules/sub/refs/README": "empty",
            "sub/.git": "gitdir: ../modules/sub\n",
            "sub/bilby.py": "def bilby():\n    return 2\n",
            **FILLER,
        },
    )
    assert [hit.path for hit in ask(root, "bilby")] == ["sub/bilby.py"]  # the outer rules do not count in a submodule


def test_an_ignored_folder_is_never_read(tmp_path: Path) -> None:
    rules = "secret/\t\nprivate/ \t\n[[:upper:]]idden[[:digit:]]/\n*.[[:alpha:]][[:upper:]]G\n"
    text = "def echidna():\n    return 1\n"
    files: Files = {f"{name}/f.py": text for name in ("secret", "private", "Hidden1")}
    root = write(tmp_path, {".gitignore": rules, **files, "x.LOG": text, "kept/f.py": text, **FILLER})
    assert [hit.path for hit in ask(root, "echidna")] == ["kept/f.py"]


def test_a_package_called_test_is_searched_and_tests_are_not(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "shop/test/client.py": "class Platypus:\n    pass  # drives requests\n",
            "tests/test_platypus.py": "def test_platypus():\n    assert Platypus()\n",
            "shop/test_platypus.py": "def test_platypus():\n    assert Platypus()\n",
            **FILLER,
        },
    )
    assert [hit.path for hit in ask(root, "Platypus")] == ["shop/test/client.py"]


def test_tests_and_copies_stand_below_the_code(tmp_path: Path) -> None:
    text = "def wombat():\n    return 'wombat digs'\n"
    places = ("testing/wombat.py", "regress/wombat.py", "vendor/lib/wombat.py", "examples/wombat.py")
    root = write(tmp_path, {**dict.fromkeys(places, text), "shop/wombat.py": text, **FILLER})
    assert ask(root, "where does the wombat dig?")[0].path == "shop/wombat.py"


@given(st.text(alphabet="aZ9_ \nΣσİKßΛ"))
def test_lower_case_keeps_every_offset(text: str) -> None:
    lower = ReadFile("notes.md", text).lower
    assert len(lower) == len(text)
    for character, small in zip(text, lower, strict=True):
        assert small == (character if character == "İ" else character.lower())
