"""Checkpoints: a folder that a killed run goes on from, bit for bit.

    fingerprint.json    what run this is: settings, digests of data, model and surrogates
    calls/000012.npz    what call 12 of the engine left: draws, visited clients, states, and a digest of these,
                        of the number 12 and of the run

A call's file is written under another name and renamed when it is complete, so a kill at any
moment leaves whole files only. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fsgld.errors import CheckpointError, brief

Arrays = dict[str, np.ndarray]


class Checkpoint:
    """A folder of finished calls of one run."""

    def __init__(self, folder: str | Path, fingerprint: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self.run = json.dumps(fingerprint, sort_keys=True)
        try:
            self._claim(json.loads(json.dumps(fingerprint)))
            (self.folder / "calls").mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"cannot write the checkpoint folder {self.folder}: {error.strerror}; choose"
                " another folder or mend its permissions"
            ) from error

    def load(self) -> list[Arrays]:
        """Read all finished calls, in order."""
        found = (file for file in (self.folder / "calls").glob("*.npz") if file.stem.isdecimal())
        files = sorted(found, key=lambda file: int(file.stem))
        if [int(file.stem) for file in files] != list(range(len(files))):
            raise CheckpointError(
                f"the checkpoint {self.folder} lacks a call before {files[-1].name}; it was left"
                " untouched. Restore the file or choose another folder"
            )
        return [self._read(file, call) for call, file in enumerate(files)]

    def append(self, call: int, arrays: Arrays) -> None:
        """Write one finished call, whole or not at all."""
        target = self.folder / "calls" / f"{call:06d}.npz"
        try:
            with target.with_suffix(".partial").open("wb") as file:
                np.savez(file, allow_pickle=False, digest=np.array(self._digest(call, arrays)), **arrays)
                file.flush()
                os.fsync(file.fileno())
            target.with_suffix(".partial").replace(target)
        except OSError as error:
            raise CheckpointError(
                f"cannot write {target}: {error.strerror}; {call} finished calls are safe in"
                f" {self.folder}, run again to go on from there"
            ) from error

    def _digest(self, call: int, arrays: Arrays) -> str:
        """Fingerprint a call: which it is, of which run, and what it left."""
        return digest((np.frombuffer(f"{call} {self.run}".encode(), np.uint8), arrays))

    def _read(self, file: Path, call: int) -> Arrays:
        """Read one call and check it against its own digest."""
        try:
            # opened here, because np.load leaves a file open that it cannot read
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            if str(arrays.pop("digest")) == self._digest(call, arrays):
                return arrays
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            pass
        raise CheckpointError(
            f"the checkpoint file {file} is damaged, or of another run or call; it was left untouched. Delete it and"
            " all later ones to go on from the call before, or choose another folder"
        )

    def _claim(self, fingerprint: dict[str, Any]) -> None:
        """Write the fingerprint of this run, or compare it with the one found."""
        file = self.folder / "fingerprint.json"
        if not file.exists():
            if self.folder.is_dir() and any(found.suffix != ".partial" for found in self.folder.iterdir()):
                raise CheckpointError(f"{self.folder} is not empty and holds no fingerprint.json; {_FIX}")
            self.folder.mkdir(parents=True, exist_ok=True)
            file.with_suffix(".partial").write_text(json.dumps(fingerprint, indent=1))
            file.with_suffix(".partial").replace(file)
            return
        try:
            found = json.loads(file.read_text())
        except ValueError:
            raise CheckpointError(f"{file} is damaged (not JSON); {_FIX}") from None
        if not isinstance(found, dict):
            raise CheckpointError(f"{file} is damaged (not a table of settings); {_FIX}")
        for key in fingerprint | found:
            if found.get(key) != fingerprint.get(key):
                raise CheckpointError(
                    f"the checkpoint {self.folder} belongs to another run: its {key} is"
                    f" {brief(found.get(key), 50)}, this run's is {brief(fingerprint.get(key), 50)}; {_FIX}"
                )


_FIX = "it was left untouched. Choose another folder, or give the same arguments to go on"


def digest(tree: Any) -> str:
    """Fingerprint a pytree of arrays: paths, shapes, dtypes and values; the same in every process."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(leaf)
        sha.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        sha.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return sha.hexdigest()
