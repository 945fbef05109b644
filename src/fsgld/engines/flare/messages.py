"""Every message between the coordinator and a site: its fields, and nothing else may leave.

A message is a table of numbers, words and arrays. On the wire it is a magic word, the length of a JSON header, the
header, and the arrays' bytes one after the other: nothing in it can be executed. Both sides check a message against
its schema before they use it. Dimensions have letters (d parameters, C chains, K probes or draws; P columns of a
formula, B bins) that must agree within a message and with what the reader knows. The first six kinds of messages are
for formulas (`fsgld.glm.remote`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"fsgld-1\n"
LARGEST = 256 * 2**20  # bytes of a message, by default
LONGEST_TEXT = 2**24
DTYPES = {"f": ("<f8", "<f4"), "i": ("<i4", "<i8")}
ENVELOPE = {"kind": "word", "study": "word", "round": "whole"}

_THETA = "f[d]"
_MATRIX = "f[d]|f[d,d]"  # a vector stands for a diagonal
_Q = {"shift": _THETA, "precision": _MATRIX + "?"}
_PROBES = {"points": "f[K,d]", "anchor": _THETA, "factor": _MATRIX, "differences": "truth"}
_STATE = {"theta": "f[C,d]", "memory": "i[C]|f[C,d]?", "t": "i[C]"}
_MATRICES = "f[C,d]|f[C,d,d]?"
_OWN = {"shift": "f[C,d]?", "precision": _MATRICES, "anchor": "f[C,d]?", "gradient": "f[C,d]?"}  # refresh on visit

# What the coordinator asks. A question mark: may be absent
REQUESTS: dict[str, dict[str, str]] = {
    "describe": {},
    "moments": {"design": "text"},
    "design": {"design": "text"},
    "outcomes": {"w": "f[K,D]", "seed": "whole"},
    "alone": {},
    "pull": {"w": "f[D]"},
    "hello": {},
    "all_clients": {"theta": _THETA, "form": "word?"},
    "mean_derivatives": {"points": "f[K,d]"},
    "residuals": {"points": "f[K,d]", "factor": _MATRIX, **_Q},
    "excess_by_products": {"theta": _THETA, "factor": _MATRIX, **_Q},
    "by_leverage": _PROBES,
    "noise_of_some": _PROBES | {"most": "whole", "few": "f[F,d]?"},
    "setup": {
        "dynamics": "word", "schedule": "word", "numbers": "f[N]", "friction": "number?", "decay": "number?",
        "floor": "number?", "factor": _MATRIX + "?", "mean": _THETA + "?", "limit": "number?",
        "likelihood": "word", "batch_size": "whole", "local_steps": "whole", "record": "whole", "seed": "whole",
        "chains": "whole", "alpha": "number", "prob": "number", "anchor": _THETA + "?", "gradient": _THETA + "?",
        "total_shift": _THETA, "total_precision": _MATRIX + "?", "few": "f[F,d]?", **_Q,
    },
    "update": {
        "setup": "word", "mass": "number", "chains": "i[C]", **_STATE, **_OWN, "total_shift": "f[C,d]?",
        "total_precision": _MATRICES,
    },
}  # fmt: skip

# All that ever leaves a site: sums over its rows, states of chains, draws, counts, and words about itself
REPLIES: dict[str, dict[str, str]] = {
    "describe": {
        "read": "whole", "rows": "whole", "missing": "i[V]", "text": "i[V]", "levels": "words", "places": "i[L]",
        "counts": "i[L]", "learns": "f[M,3]",
    },
    "moments": {"columns": "words", "x": "f[P,3]", "y": "f[3]", "exposure": "number"},
    "design": {"study": "word"},
    "outcomes": {
        "observed": "i[B]", "replicated": "i[K,B]", "mean": "number", "sd": "number", "means": "f[K]", "sds": "f[K]",
    },
    "alone": {"mean": "f[P]?", "sd": "f[P]?"},
    "pull": {"gradient": "f[1,D]", "curvature": "f[1,D,D]"},
    "hello": {"rows": "whole", "columns": "words", "data": "word", "software": "word"},
    "all_clients": {"value": "f[1]", "gradient": "f[1,d]", "curvature": "f[1,d]|f[1,d,d]?"},
    "mean_derivatives": {"gradient": "f[1,d]", "curvature": "f[1,d,d]"},
    "residuals": {"value": "f[1,K,d]", "growth": "f[1,K,d]"},
    "excess_by_products": {"ends": "f[1,2]"},
    "by_leverage": {"lots": "whole"},
    "noise_of_some": {"variance": "f[1,K,d]", "leverage": "f[1]"},
    "setup": {"setup": "word"},
    "update": {**_STATE, "draws": "f[C,kept,d]?", **_OWN},
    "refusal": {"reason": "word"},
}  # fmt: skip
# The request's digest, `to`, is in every reply as well


class MessageError(ValueError):
    """A message is not what its schema says."""


class Message(NamedTuple):
    """A message that has been checked."""

    kind: str
    study: str  # digest of the study's files
    round: int  # -1 outside of rounds
    fields: dict[str, Any]
    to: str = ""  # in a reply: digest of the request


def encode(message: Message) -> bytes:
    """Check a message and write it as bytes."""
    schema = (REPLIES if message.to else REQUESTS).get(message.kind)
    if schema is None:
        raise MessageError(f"unknown kind {message.kind!r}")
    fields = {name: _plain(value) for name, value in message.fields.items() if value is not None}
    _check(schema, fields, {})
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    header = {
        "kind": message.kind, "study": message.study, "round": message.round, "to": message.to,
        "fields": {name: value for name, value in fields.items() if name not in arrays},
        "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()],
    }  # fmt: skip
    text = json.dumps(header).encode()
    return b"".join([MAGIC, len(text).to_bytes(4, "little"), text, *(array.tobytes() for array in arrays.values())])


def decode(data: Any, reply: bool, dims: Mapping[str, int] | None = None, largest: int = LARGEST) -> Message:
    """Read bytes and check everything: size, header, schema, dimensions."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise MessageError(f"not bytes but {type(data).__name__}")
    data = bytes(data)
    if len(data) > largest:
        raise MessageError(f"{len(data)} bytes, more than {largest} that are allowed")
    if data[: len(MAGIC)] != MAGIC:
        raise MessageError("not a message of fsgld")
    begin = len(MAGIC) + 4
    end = begin + int.from_bytes(data[len(MAGIC) : begin], "little")
    try:
        header = json.loads(data[begin:end])
        kind, study, number, to = (header[name] for name in ("kind", "study", "round", "to"))
        fields, arrays = dict(header["fields"]), list(header["arrays"])
    except (ValueError, KeyError, TypeError, UnicodeDecodeError, RecursionError):
        raise MessageError("a damaged header") from None
    for name, value in {"kind": kind, "study": study, "to": to}.items():
        if not isinstance(value, str):
            raise MessageError(f"{name} is not a word")
    schema = (REPLIES if reply else REQUESTS).get(kind)
    if schema is None or bool(to) != reply or not _is_whole(number):
        raise MessageError(f"unknown kind {kind[:40]!r}")
    fields |= _arrays(arrays, data, end)
    _check(schema, fields, dict(dims or {}))
    return Message(kind, study, number, fields, to)


def digest(data: bytes) -> str:
    """Name a message by its content."""
    return hashlib.sha256(data).hexdigest()


def describe(message: Message) -> dict[str, str]:
    """Say for the audit log which fields a message has, with their shapes; no values of arrays."""
    return {
        name: f"{value.dtype.str[1:]}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        for name, value in message.fields.items() if value is not None
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """Turn arrays into NumPy's, little-endian and contiguous; leave numbers and words."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "shape"):
        array = np.asarray(value, order="C")
        if array.dtype.kind not in DTYPES:
            raise MessageError(f"arrays of type {array.dtype} are not sent")
        return array.astype(array.dtype.newbyteorder("<"), copy=False)
    return value


def _arrays(listed: list, data: bytes, begin: int) -> dict[str, np.ndarray]:
    """Take the arrays out of a message's tail; it must be neither longer nor shorter than they are."""
    found: dict[str, np.ndarray] = {}
    for entry in listed:
        try:
            name, dtype, shape = entry
            ok = isinstance(name, str) and any(dtype in kinds for kinds in DTYPES.values())
            ok = ok and all(_is_whole(n) and n >= 0 for n in shape) and len(shape) <= 3
        except (TypeError, ValueError):
            ok = False
        if not ok:
            raise MessageError("a damaged list of arrays")
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if begin + size > len(data):
            raise MessageError("shorter than its arrays")
        found[name] = np.frombuffer(data, dtype, math.prod(shape), begin).reshape(shape)
        begin += size
    if begin != len(data):
        raise MessageError("longer than its arrays")
    return found


def _check(schema: Mapping[str, str], fields: Mapping[str, Any], dims: dict[str, int]) -> None:
    """Check fields against a schema; every field must be known, and have its type and shape."""
    for name in fields:
        if name not in schema:
            raise MessageError(f"a field {str(name)[:40]!r} that is not in the schema")
    for name, spec in schema.items():
        if name not in fields:
            if not spec.endswith("?"):
                raise MessageError(f"no field {name}")
        elif not _matches(fields[name], spec.rstrip("?"), dims):
            raise MessageError(f"field {name} is not {spec} with {dims}")


def _matches(value: Any, spec: str, dims: dict[str, int]) -> bool:
    """Whether a value has the type and shape that a schema asks for; unknown letters are learnt."""
    if spec == "word":
        return isinstance(value, str) and len(value) <= 2000
    if spec == "text":  # of the coordinator's
        return isinstance(value, str) and len(value) <= LONGEST_TEXT
    if spec == "words":
        return isinstance(value, list) and len(value) <= 10_000 and all(_matches(v, "word", dims) for v in value)
    if spec == "whole":
        return _is_whole(value)
    if spec == "truth":
        return isinstance(value, bool)
    if spec == "number":
        return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
    if "|" in spec:
        return any(_matches(value, one, dims) for one in spec.split("|"))
    kind, letters = spec[0], spec[2:-1].split(",")
    if not isinstance(value, np.ndarray) or value.dtype.str not in DTYPES[kind] or value.ndim != len(letters):
        return False
    return all(n == (int(x) if x.isdigit() else dims.setdefault(x, n))
               for x, n in zip(letters, value.shape, strict=True))  # fmt: skip


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62
