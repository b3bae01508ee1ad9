"""Downloading a file over http(s): resumable, limited in time and size, with progress reports."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import Protocol

from fedsat.errors import DataError
from fedsat.version import __version__

TIMEOUT = 20.0
"""Seconds without data after which a transfer fails."""
ATTEMPTS = 3
"""How many times an interrupted transfer is resumed."""
CHUNK = 1 << 18


class Reporter(Protocol):
    """Receives messages and progress; the command line prints them."""

    def line(self, text: str) -> None:
        """Report one line: a source that failed, a dataset that is ready."""

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Report `done` of `total` bytes of `what`; the total is None if it is unknown."""


class Silent:
    """A reporter that does nothing."""

    def line(self, text: str) -> None:
        """Ignore a message."""

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Ignore progress."""


def download(address: str, target: Path, reporter: Reporter, limit: int) -> Path:
    """Download `address` to `target`, resuming an earlier attempt (`target`.part)."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _transfer(address, part, reporter, limit)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and part.exists():  # the partial file does not match: start over
                part.unlink()
            elif error.code < 500 or attempt == ATTEMPTS:
                raise DataError(f"{address}: the server responded with {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            # No connection; only a transfer that has started is resumed.
            raise DataError(f"{address}: cannot connect ({error.reason})") from error
        except (OSError, http.client.HTTPException) as error:
            if attempt == ATTEMPTS:
                raise DataError(f"{address}: the transfer was interrupted ({error or type(error).__name__})") from error
        else:
            return part.replace(target)
    raise DataError(f"{address}: the server refuses to send the file from its beginning")


def _transfer(address: str, part: Path, reporter: Reporter, limit: int) -> None:
    """Append what is missing to `part`; raise an error if the end is not reached."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"fedsat/{__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        done = have if resumed else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        if (total or 0) > limit:
            raise DataError(f"{address}: announces {total:,} bytes; at most {limit:,} are expected")
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(CHUNK):
                done += len(chunk)
                if done > limit:
                    raise DataError(f"{address}: sends more than the expected maximum of {limit:,} bytes")
                file.write(chunk)
                reporter.progress(address.rpartition("/")[2], done, total)
    if total is not None and done < total:
        raise ConnectionError(f"{done:,} of {total:,} bytes received")
