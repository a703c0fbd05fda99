"""Download of a file over HTTP. An interrupted download continues where it stopped."""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import reflectrl
from reflectrl.core.types import UserError

PIECE = 1 << 18
SILENCE_SECONDS = 60.0
"""Seconds without a byte after which the connection counts as broken."""

ProgressCallback = Callable[[int, int], None]
"""Function that is called with the bytes so far, and their total, or 0 if the server does not give it."""


def download(url: str, path: Path, progress: ProgressCallback = lambda done, total: None) -> None:
    """Fetch `url` to `path`. A file that exists is kept as it is.

    Until it is complete, the file is called `path` + ".part". A later call continues from its end, if the server
    supports that.

    Args:
        url: an http or https address.
        path: file to write. Its folder must exist.
        progress: called as the file grows.

    Raises:
        UserError: the server cannot be reached or refuses, the connection broke, or the disk is full.
    """
    if path.exists():
        return
    part = path.with_name(path.name + ".part")
    try:
        _fetch(url, part, progress)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except urllib.error.HTTPError as error:
        raise UserError(f"{url}: the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: not an address
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{url}: {why}; run the same command again to continue") from error


def _fetch(url: str, part: Path, progress: ProgressCallback) -> None:
    with _opened(url, part) as answer:
        sent = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range") or "")  # the range that we asked for
        begin = int(sent[1]) if answer.status == http.HTTPStatus.PARTIAL_CONTENT and sent else 0
        length = answer.headers.get("Content-Length")
        total = begin + int(length) if length else 0
        with part.open("rb+" if begin else "wb") as file:
            done = file.seek(begin)
            file.truncate()
            while piece := answer.read(PIECE):
                file.write(piece)
                done += len(piece)
                progress(done, total)
        if done < total:
            raise OSError(f"the connection ended after {done} of {total} bytes")


def _opened(url: str, part: Path) -> Any:
    """Open the server's answer, which is the rest of the file if its beginning exists here."""
    headers = {"User-Agent": f"reflectrl/{reflectrl.__version__}"}
    present_bytes = part.stat().st_size if part.exists() else 0
    try:
        return _ask(url, headers | ({"Range": f"bytes={present_bytes}-"} if present_bytes else {}))
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()
        return _ask(url, headers)  # the part is not the beginning of that file, so start anew


def _ask(url: str, headers: dict[str, str]) -> Any:
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SILENCE_SECONDS)
