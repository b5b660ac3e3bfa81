"""A folder of files that save time and are never needed: each named by a hash of all that its content depends on.

What can't be read, or is not what was written, counts as not there; what can't be written is not kept. Files are never
changed, so processes that share the folder can't get in each other's way.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import uuid
from contextlib import suppress
from pathlib import Path

from numba.core.serialize import dumps
from platformdirs import user_cache_path

MOST = 2000  # files of a kind; then the longest unused go
DIGEST = 32  # bytes


def folder(kind: str) -> Path:
    """Where the files of a kind lie: in the user's cache folder, or in $LABKIT_CACHE."""
    return Path(os.environ.get("LABKIT_CACHE") or user_cache_path("labkit")) / kind


def name(*parts: str) -> str:
    """The name of what depends on these parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} {part}".encode(errors="surrogatepass"))
    return digest.hexdigest()


def load(kind: str, name: str) -> object | None:
    """What was saved under a name, or None."""
    path = folder(kind) / name
    with suppress(Exception):  # pickle raises whatever it stumbles over
        content = path.read_bytes()
        digest, data = content[:DIGEST], content[DIGEST:]
        if digest == _digest(name, data):
            with suppress(OSError):
                os.utime(path)  # so that the longest unused are known
            return pickle.loads(data)
    return None


def save(kind: str, name: str, value: object) -> None:
    """Keep a value under a name."""
    with suppress(Exception):
        path, data = folder(kind) / name, dumps(value)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{name}.{uuid.uuid4().hex}")
        try:
            new.write_bytes(_digest(name, data) + data)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
        _forget_the_oldest(path.parent)


def _digest(name: str, data: bytes) -> bytes:
    """What tells that a file is whole, and under its own name."""
    return hashlib.sha256(name.encode() + data).digest()


def _forget_the_oldest(folder: Path) -> None:
    """Once there are too many files: leave half of them."""
    if len(os.listdir(folder)) > MOST:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime)
        for entry in entries[: -MOST // 2]:
            with suppress(OSError):
                os.unlink(entry.path)
