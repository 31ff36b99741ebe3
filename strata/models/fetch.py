"""A wheel from a Python package index, into a folder: by pip where it is there, else by HTTP(S).

pip knows its user's index, proxy and certificates better than anybody, so it goes first.  Trusts nothing that it
brings: whoever asked checks the hash.  Knows indexes and downloads; nothing of models.
"""

from __future__ import annotations

import base64
import http.client
import importlib.util
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, Final

from strata.models.source import Source

PUBLIC_INDEX: Final = "https://pypi.org/simple"

_CHUNK_BYTES: Final = 1 << 18
_NOTHING_HEARD: Final = "(from versions: none)"
_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 0.1
_PAGE_BYTES: Final = 64 << 20
"""Far above the longest page of a project; a longer one is no index's."""

Fetched = Callable[[int], None]
"""Told how many bytes have come so far."""


class FetchFailed(Exception):
    """The wheel could not be had; the text says why in one line."""


def fetch_wheel(source: Source, folder: Path, fetched: Fetched) -> Path:
    """Fetch the wheel into `folder` and return its path.  Raises FetchFailed, and OSError for the disk."""
    by = fetch_by_http if importlib.util.find_spec("pip") is None else fetch_by_pip
    return by(source, folder, fetched)


def fetch_by_pip(source: Source, folder: Path, fetched: Fetched) -> Path:
    """As `pip download` of this Python does it, under its user's settings."""
    said = folder / "pip.txt"
    with said.open("wb") as words, _pip(source, folder, words) as process:
        try:
            while not _has_ended(process):
                fetched(_largest_wheel(folder))
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise FetchFailed(f"pip: {_complaint(said.read_text(errors='replace'))}")
    wheel = folder / source.wheel
    if not wheel.is_file():
        raise FetchFailed(f"pip did not bring {source.wheel}")
    fetched(wheel.stat().st_size)
    return wheel


def _pip(source: Source, folder: Path, words: IO[bytes]) -> subprocess.Popen[bytes]:
    index = () if source.index_url is None else ("--index-url", source.index_url)
    # Its own five retries take ten seconds where there is no network.
    quiet = ("--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2")
    # No cache: the wheel is not wanted again.
    what = ("--no-cache-dir", "--no-deps", "--only-binary", ":all:", f"{source.project}=={source.version}")
    return subprocess.Popen(
        # -P: a pip.py in the current folder is not pip.
        (sys.executable, "-P", "-m", "pip", "download", *quiet, *index, *what, "--dest", str(folder)),
        stdin=subprocess.DEVNULL,
        stdout=words,
        stderr=words,
        # Its half-done downloads lie in our folder too: on the disk that has the space, and where we see them grow.
        env={**os.environ, "TMPDIR": str(folder)},
    )


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _largest_wheel(folder: Path) -> int:
    """Bytes.  The half-done one and its copy are there at once for a moment, so the largest counts."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(parent, name)).st_size if name.endswith(".whl") else 0)
            except OSError:
                # pip took it away in between.
                continue
    return max(sizes)


def _complaint(said: str) -> str:
    """pip's first line that calls itself an error, else its last one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if errors[:1] == ["Exception:"]:
        # A fault of pip's own: what it was stands at the end of its traceback.
        errors = lines[-1:]
    if errors and _NOTHING_HEARD in errors[0] and any("Retrying (" in line for line in lines):
        # It doesn't tell an index that does not answer from one that has no such project.
        return "the package index does not answer"
    return (errors or lines[-1:] or ["it failed and said nothing"])[0]


def fetch_by_http(source: Source, folder: Path, fetched: Fetched) -> Path:
    """From the index's page of the project (PEP 503), under the environment's proxy and certificate settings."""
    index = source.index_url or os.environ.get("PIP_INDEX_URL") or PUBLIC_INDEX
    page_url = f"{index.rstrip('/')}/{source.project}/"
    opener = _opener()
    page = _Page(page_url)
    with _open(opener, page_url) as answer:
        page.feed(_read(answer, _PAGE_BYTES).decode(errors="replace"))
    if source.wheel not in page.files:
        raise FetchFailed(f"{_host(page_url)} has no {source.wheel}")
    wheel = folder / source.wheel
    with _open(opener, page.files[source.wheel]) as answer, wheel.open("wb") as file:
        while piece := _read(answer, _CHUNK_BYTES):
            file.write(piece)
            fetched(file.tell())
    return wheel


class _Page(HTMLParser):
    """The links of an index's page: file name -> address."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.files: dict[str, str] = {}
        self._url = url

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        link = dict(attrs).get("href") if tag == "a" else None
        if link:
            url = urllib.parse.urljoin(self._url, link)
            self.files[urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])] = url


def _opener() -> urllib.request.OpenerDirector:
    """With the certificates and the proxy that pip would use, as far as the environment says."""
    handlers: list[urllib.request.BaseHandler] = []
    context = ssl.create_default_context()
    bundle = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    try:
        if bundle:
            context.load_verify_locations(**{"capath" if os.path.isdir(bundle) else "cafile": bundle})
    except OSError as error:
        raise FetchFailed(f"the certificates in {bundle} cannot be read: {error.strerror or error}") from error
    handlers.append(urllib.request.HTTPSHandler(context=context))
    proxy = os.environ.get("PIP_PROXY")
    if proxy:
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    return urllib.request.build_opener(*handlers)


def _open(opener: urllib.request.OpenerDirector, url: str) -> http.client.HTTPResponse:
    request = _request(url)
    try:
        answer: http.client.HTTPResponse = opener.open(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        raise FetchFailed(f"{_host(url)} answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise FetchFailed(f"{_host(url)}: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise FetchFailed(f"{_host(url)}: {error or type(error).__name__}") from error
    return answer


def _request(url: str) -> urllib.request.Request:
    """Name and password move from the address into a header, which is not sent on to where a redirect leads."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise FetchFailed(f"an index of the kind {parts.scheme or 'without a scheme'!r} needs pip")
    who, _, place = parts.netloc.rpartition("@")
    request = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=place, fragment="")))
    request.add_header("Accept", "text/html, application/octet-stream;q=0.5, */*;q=0.1")
    request.add_header("User-Agent", "strata-serve")
    if who:
        secret = base64.b64encode(urllib.parse.unquote(who).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    return request


def _read(answer: http.client.HTTPResponse, most: int) -> bytes:
    try:
        return answer.read(most)
    except (OSError, http.client.HTTPException) as error:
        raise FetchFailed(f"the download broke off: {error or type(error).__name__}") from error


def _host(url: str) -> str:
    """For people; never with the name and password that the address may hold."""
    return urllib.parse.urlsplit(url).hostname or "the index"
