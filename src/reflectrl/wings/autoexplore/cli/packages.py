"""Download packages from a package index (PEP 691, or PEP 503 if the index has no JSON). No code in them is run.

`pip download` would run some: it builds a source distribution to read its metadata. Wheels alone would not be enough,
since they leave out the tests and documents that questions are about.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import reflectrl
from reflectrl.core.json_lines import parse_json
from reflectrl.core.types import UserError
from reflectrl.tools.downloads.download import SILENCE_SECONDS, ProgressCallback, download
from reflectrl.wings.autoexplore.making.archives import ARCHIVES
from reflectrl.wings.autoexplore.making.imported import plain_name
from reflectrl.wings.autoexplore.making.repositories import Pin

DEFAULT_INDEX = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_CONFIGURATIONS = ("~/.pip/pip.conf", "~/.config/pip/pip.conf", "/etc/pip.conf")
_MOST_BYTES = 64 << 20


class NoSuchPackageError(UserError):
    """Error: the index has no such package, or no usable file of it."""


@dataclass(frozen=True)
class File:
    """File of a package on an index."""

    name: str
    url: str
    sha256: str = ""


def index_url(given: str = "") -> str:
    """Return the address of the index: `given`, else pip's (PIP_INDEX_URL, configuration files), else PyPI.

    Raises:
        UserError: the address is not http or https, or holds a password.
    """
    url = (given or os.environ.get("PIP_INDEX_URL") or _configured() or DEFAULT_INDEX).rstrip("/")
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.netloc:
        raise UserError(f"index {url!r}: expected an http or https address, such as {DEFAULT_INDEX}")
    if address.password or address.username:
        raise UserError(f"index {address.hostname}: addresses with a user or password are not supported; see --index")
    return url


def _configured() -> str:
    """Return `index-url` of pip's configuration; "" if there is none. The file closest to the user wins."""
    own = f"{os.environ['VIRTUAL_ENV']}/pip.conf" if "VIRTUAL_ENV" in os.environ else None
    for name in [*filter(None, (os.environ.get("PIP_CONFIG_FILE"), own)), *_CONFIGURATIONS]:
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(Path(name).expanduser(), encoding="utf-8")
            if url := parser.get("global", "index-url", fallback=""):
                return url
        except (configparser.Error, OSError, ValueError):
            continue
    return ""


def fetch(
    pin: Pin, index: str, folder: Path, progress: ProgressCallback = lambda done, total: None
) -> tuple[Path, Pin]:
    """Download a package's source distribution, or a wheel if there is none. An existing download is reused.

    Args:
        pin: wanted package. If it names no file, the file is chosen from the index.
        index: address of the index.
        folder: destination; an interrupted download is continued there.
        progress: progress callback.

    Returns:
        The archive, and the pin completed with the chosen version and file.

    Raises:
        NoSuchPackageError: the index has no such package or file.
        UserError: the index cannot be reached, or the sha256 differs from the pin's.
    """
    if pin.file and (folder / pin.file).exists():
        return _verified(folder / pin.file, pin), pin
    file = choose(files_of(pin.package, index), pin)
    version, sha256 = pin.version or _version(file.name), pin.sha256 or file.sha256
    completed = pin._replace(version=version, file=file.name, sha256=sha256)
    archive = folder / file.name
    download(file.url, archive, progress)
    return _verified(archive, completed), completed


def _verified(archive: Path, pin: Pin) -> Path:
    """Return the archive if its sha256 matches the pin; otherwise remove it and raise UserError."""
    if not pin.sha256:
        raise UserError(f"the index gives no sha256 of {archive.name}, so it cannot be verified")
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != pin.sha256:
        archive.unlink()
        raise UserError(f"{archive.name}: its sha256 is {digest}, not {pin.sha256}; it was removed")
    return archive


def files_of(package: str, index: str) -> list[File]:
    """List the files of a package on an index.

    Raises:
        NoSuchPackageError: the index has no such package.
        UserError: the index cannot be reached, or its answer cannot be read.
    """
    url = f"{index}/{plain_name(package)}/"
    headers = {"Accept": _ACCEPT, "User-Agent": f"reflectrl/{reflectrl.__version__}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SILENCE_SECONDS) as response:
            text = response.read(_MOST_BYTES).decode("utf-8")
            kind = response.headers.get_content_type()
            page_url = response.url
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            raise NoSuchPackageError(f"{index} has no package {package!r}") from error
        raise UserError(f"{url}: the server says {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{url}: {getattr(error, 'reason', None) or error}") from error
    try:
        return _from_json(text, page_url) if kind.endswith("json") else _from_html(text, page_url)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{url}: the answer is not a page of a package index ({error!r})") from error


def _from_json(text: str, page_url: str) -> list[File]:
    """Parse the JSON page of a package (PEP 691)."""
    rows: list[dict[str, Any]] = parse_json(text)["files"]
    return [
        File(row["filename"], urljoin(page_url, row["url"]), row.get("hashes", {}).get("sha256", ""))
        for row in rows
        if not row.get("yanked")
    ]


def _from_html(text: str, page_url: str) -> list[File]:
    """Parse the HTML page of a package (PEP 503)."""
    page = _Links()
    page.feed(text)
    files = []
    for link in page.found:
        url, fragment = urldefrag(urljoin(page_url, link))
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        files.append(File(name, url, fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""))
    return files


class _Links(HTMLParser):
    """Links of a page, without the yanked ones (PEP 592)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "a" and attributes.get("href") and "data-yanked" not in attributes:
            self.found.append(attributes["href"] or "")


def choose(files: Sequence[File], pin: Pin) -> File:
    """Choose the pinned file; else a source distribution, or a wheel, of the pinned or newest version.

    Raises:
        NoSuchPackageError: there is no such file.
    """
    from packaging.version import Version

    if pin.file:
        fitting = [file for file in files if file.name == pin.file]
    else:
        versions = {
            file: version for file in files if (version := _version(file.name)) and file.name.endswith(ARCHIVES)
        }
        final = {file: version for file, version in versions.items() if not Version(version).is_prerelease} or versions
        newest = pin.version or str(max(map(Version, final.values()), default=""))
        fitting = [file for file, version in versions.items() if Version(version) == Version(newest)] if newest else []
    if not fitting:
        raise NoSuchPackageError(f"the index has no {pin.file or f'{pin.package} {pin.version}'.strip()}")
    return min(fitting, key=lambda file: (file.name.endswith(".whl"), file.name))


def _version(name: str) -> str:
    """Return the version in a file's name; "" if the file is no archive of a package."""
    from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
    from packaging.version import InvalidVersion

    try:
        return str(parse_wheel_filename(name)[1] if name.endswith(".whl") else parse_sdist_filename(name)[1])
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        return ""
