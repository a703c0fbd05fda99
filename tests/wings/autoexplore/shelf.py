"""A small library of repositories for tests."""

import json
from pathlib import Path


def module(about: str, function: str, doc: str) -> str:
    """The text of a Python file with one function."""
    return f'"""{about}"""\n\n\ndef {function}:\n    """{doc}"""\n'


FILES = {
    "shop": {
        "README.md": "# Shop\n\nHow to install the shop.\n",
        "setup.toml": "[project]\nname = 'shop'\n",
        "shop/basket.py": module("The basket of a customer.", "add_item(basket, item)", "Put an item into the basket."),
        "shop/pay/cards.py": module("Payment by credit card.", "refund(card, amount)", "Give money back."),
        "shop/pay/bank.py": module("Payment by bank transfer.", "transfer(account)", "Send money."),
    },
    "zoo": {
        "README.md": "# Zoo\n\nAll about the animals.\n",
        "zoo/feeding.py": module("When animals are fed.", "feed(animal, hour)", "Feed an animal at an hour."),
        "zoo/cages.py": module("Cages and their keys.", "unlock(cage)", "Open a cage with its key."),
    },
}
QUESTIONS = {
    "train": [
        ("shop", "How is money given back to a credit card?", "shop/pay/cards.py"),
        ("shop", "Where is an item put into the basket?", "shop/basket.py"),
        ("shop", "Which file says how to install it?", "README.md"),
        ("shop", "How is a bank transfer sent?", "shop/pay/bank.py"),
    ],
    "validation": [("zoo", "When does an animal get fed?", "zoo/feeding.py")],
    "test": [("zoo", "How is a cage opened with its key?", "zoo/cages.py"), ("zoo", "What is it about?", "README.md")],
}


def make_library(folder: Path) -> Path:
    """Write the files above as a library."""
    for repo, files in FILES.items():
        for path, text in files.items():
            place = folder / "repos" / repo / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    (folder / "questions").mkdir()
    for split, asked in QUESTIONS.items():
        rows = [
            {"id": f"{split}-{n}", "repo": repo, "question": text, "gold": [gold], "source": "docstring"}
            for n, (repo, text, gold) in enumerate(asked)
        ]
        _write(folder / "questions" / f"{split}.jsonl", rows)
    splits = {"shop": "train", "zoo": "test"}
    _write(folder / "repos.jsonl", [{"name": name, "split": split} for name, split in splits.items()])
    return folder


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
