"""Messages: what is sent is what is read, and nothing else is read."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsgld.engines.flare.messages import LARGEST, MAGIC, REPLIES, REQUESTS, Message, MessageError, decode, encode


def example(spec, rng, which=0):
    """A value that fits a field; of several forms the first or the last."""
    spec = spec.rstrip("?").split("|")[which]
    plain = {"word": "w", "words": ["a", "b"], "whole": 3, "truth": True, "number": 0.5, "text": "t"}
    if spec in plain:
        return plain[spec]
    sizes = {"d": 3, "C": 2, "K": 4, "F": 2, "kept": 5, "N": 3, "D": 3, "V": 2, "L": 4, "M": 1, "P": 2, "B": 5}
    shape = [int(x) if x.isdigit() else sizes[x] for x in spec[2:-1].split(",")]
    return rng.integers(0, 9, shape, np.int32) if spec[0] == "i" else rng.normal(size=shape)


ALL = [(kind, False) for kind in REQUESTS] + [(kind, True) for kind in REPLIES]


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize(("kind", "reply"), ALL)
def test_every_kind_comes_back_as_it_was_sent(kind, reply, which):
    rng = np.random.default_rng(0)
    schema = (REPLIES if reply else REQUESTS)[kind]
    fields = {name: example(spec, rng, which) for name, spec in schema.items()}
    m = decode(encode(Message(kind, "s", 7, fields, "r" if reply else "")), reply, {"d": 3})
    assert (m.kind, m.study, m.round, m.to) == (kind, "s", 7, "r" if reply else "")
    assert list(m.fields) and set(m.fields) == set(fields) if fields else not m.fields
    for name, value in fields.items():
        np.testing.assert_array_equal(m.fields[name], value)
        assert np.asarray(m.fields[name]).dtype == np.asarray(value).dtype


@pytest.mark.parametrize(("kind", "reply"), ALL)
def test_a_field_too_many_too_few_or_of_another_shape_is_refused(kind, reply):
    rng = np.random.default_rng(0)
    schema = (REPLIES if reply else REQUESTS)[kind]
    fields = {name: example(spec, rng) for name, spec in schema.items()}
    to = "r" if reply else ""
    with pytest.raises(MessageError, match="not in the schema"):
        encode(Message(kind, "s", 0, fields | {"rows_of_x": np.zeros(3)}, to))
    for name, spec in schema.items():
        if not spec.endswith("?"):
            with pytest.raises(MessageError, match=f"no field {name}"):
                encode(Message(kind, "s", 0, {k: v for k, v in fields.items() if k != name}, to))
        with pytest.raises(MessageError, match=f"field {name} is not"):
            encode(Message(kind, "s", 0, fields | {name: np.zeros((2, 2, 2, 2))}, to))
    if "f[d]" in schema.values():
        with pytest.raises(MessageError, match="is not f"):
            decode(encode(Message(kind, "s", 0, fields, to)), reply, {"d": 4})


GOOD = encode(Message("all_clients", "s", -1, {"theta": np.arange(3.0)}))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.booleans())
def test_a_changed_byte_is_read_as_a_message_or_refused_never_more(place, byte, cut):
    data = bytearray(GOOD)
    data[place] = byte
    try:
        m = decode(bytes(data[:place] if cut else data), False, {"d": 3})
    except MessageError:
        return
    assert m.kind in REQUESTS and m.fields["theta"].shape == (3,)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_refused(data):
    for begin in (b"", MAGIC, MAGIC + len(data).to_bytes(4, "little")):
        with pytest.raises(MessageError):
            decode(begin + data, False)


def header(**changes):
    facts = {"kind": "hello", "study": "s", "round": 0, "to": "", "fields": {}, "arrays": []} | changes
    text = json.dumps(facts).encode()
    return MAGIC + len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        header(kind=["hello"]), header(study=1), header(round="0"), header(round=True), header(to=None),
        header(kind="no such kind"), header(fields=[1]), header(arrays=[["theta", "|O", [1]]]),
        header(arrays=[["theta", "<f8", [-1]]]), header(arrays=[["theta", "<f8", [10**18]]]), header(arrays=[1]),
        header(arrays=[["theta", "<f8", [1, 1, 1, 1]]]), header(fields={"x": float("nan")}),
    ],
)  # fmt: skip
def test_headers_that_make_no_sense_are_refused(data):
    with pytest.raises(MessageError):
        decode(data, False)


def test_size_and_kind_of_object_are_checked_first():
    with pytest.raises(MessageError, match="more than"):
        decode(GOOD, False, largest=len(GOOD) - 1)
    with pytest.raises(MessageError, match="not bytes but str"):
        decode("text", False)
    with pytest.raises(MessageError, match="of type object"):
        encode(Message("all_clients", "s", -1, {"theta": np.array([None])}))
    assert LARGEST == 2**28
    with pytest.raises(MessageError):
        decode(GOOD, True)  # a request is no reply
