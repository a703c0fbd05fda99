"""Small repositories that tests write."""

import io
import tarfile
from pathlib import Path

THINGS = ("invoice", "customer", "parcel", "ticket", "recipe", "engine", "garden", "letter")


def write_shop(root: Path, things: tuple[str, ...] = THINGS) -> Path:
    """A repository with a module per thing, documentation, settings and a table."""
    files = {
        "README.md": "# Shop\n\nKeeps track of everything that a small shop sells.\n\n"
        "## Sending reminders to late payers\n\nReminders are sent by post when a bill was not paid for two weeks.\n",
        "docs/shipping.rst": "Shipping abroad\n===============\n\n"
        "Heavy goods are shipped by train unless they are fragile.\n",
        "settings.toml": "[mail]\nserver = 'localhost'\nreply_address = 'shop@example.org'\n",
        "data/prices.csv": "article,weight_in_grams,price\nspoon,30,2\n",
        "LICENSE": "MIT License\n\nPermission is hereby granted, free of charge, to any person\n",
    }
    for thing in things:
        name = thing.capitalize()
        files[f"shop/{thing}s.py"] = (
            f'"""Everything that concerns each {thing}."""\n\n\n'
            f"class {name}Store(BaseStore):\n"
            f'    """Keeps every {thing} that was entered, sorted by date."""\n\n'
            f"    def find_{thing}(self, number, strict=True):\n"
            f'        """Return the {thing} of that number from the cupboard."""\n'
            f"        # a missing {thing} may have been archived last year\n"
            f"        found = self.look_into_archive(number)\n"
            f"        if not found:\n            raise Missing{name}Error(number)\n"
            f"        return found\n\n"
            f"    def compute_{thing}_tax(self, rate):\n        return rate * 2\n"
        )
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def tar(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    """A .tar.gz archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return buffer.getvalue()


def sdist(root: Path, name: str, version: str) -> bytes:
    """A source distribution of a repository."""
    files = {
        f"{name}-{version}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    files[f"{name}-{version}/PKG-INFO"] = f"Name: {name}\nVersion: {version}\nLicense: MIT\n".encode()
    return tar(files)
