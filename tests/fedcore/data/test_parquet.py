from __future__ import annotations

import io
import struct

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.data.parquet import decode, encode
from fedcore.errors import DataError

SAMPLE = pl.DataFrame({"a": list(range(50)), "y": np.random.default_rng(0).normal(size=50), "note": ["train"] * 50})


def test_a_frame_comes_back() -> None:
    assert decode(encode(SAMPLE), "here").equals(SAMPLE)


@given(st.data())
def test_damage_is_noticed_or_harmless(data: st.DataObject) -> None:
    # polars' own reader aborts the process on some of these, which is why arrow reads.
    raw = bytearray(encode(SAMPLE))
    for position in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[position] = data.draw(st.integers(0, 255))
    try:
        outcome = decode(bytes(raw), "here").height
    except DataError as error:
        outcome = (str(error), error.__context__)
    if isinstance(outcome, tuple):
        assert outcome[0].startswith("here: ")
        assert len(outcome[0].splitlines()) == 1
        assert outcome[1] is None
    else:
        assert outcome in (0, 50)


def test_a_changed_value_is_noticed_by_its_checksum() -> None:
    raw = bytearray(encode(SAMPLE))
    position = raw.index(struct.pack("<d", SAMPLE["y"][20]))
    raw[position] ^= 1
    with pytest.raises(DataError, match=r"^here: not a readable parquet file"):
        decode(bytes(raw), "here")


def test_text_that_is_no_utf8_is_refused() -> None:
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xff\xfe")])
    buffer = io.BytesIO()
    pq.write_table(pa.table({"note": text}), buffer)
    with pytest.raises(DataError, match=r"^here: not a readable parquet file"):
        decode(buffer.getvalue(), "here")


def test_metadata_that_is_no_utf8_does_no_harm() -> None:
    buffer = io.BytesIO()
    pq.write_table(SAMPLE.to_arrow().replace_schema_metadata({b"\xff": b"\xfe"}), buffer)
    assert decode(buffer.getvalue(), "here").equals(SAMPLE)


def test_a_name_that_occurs_twice_is_refused() -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), buffer)
    with pytest.raises(DataError, match=r"^here: a column name occurs twice"):
        decode(buffer.getvalue(), "here")
