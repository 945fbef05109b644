"""A site's table, whatever it comes as: a file, a DataFrame or a dict of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fsgld.errors import InputError, brief
from fsgld.glm import tables


def as_table(given: Any, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Give a table with columns of floats, or of text with None where a value is missing."""
    if isinstance(given, str | Path):
        return tables.read(given, columns)
    if not isinstance(given, Mapping | pd.DataFrame):
        raise InputError(f"{name}: a table is a path, a DataFrame or a dict of columns; got {brief(given, 40)}")
    try:
        frame = pd.DataFrame(given).reset_index(drop=True)
    except ValueError as error:
        raise InputError(f"{name}: the columns do not make a table ({brief(str(error))})") from None
    if twice := [column for column in frame.columns if list(frame.columns).count(column) > 1]:
        raise InputError(f"{name}: two columns read {brief(twice[0])}; give each column a name of its own")
    if not len(frame):
        raise InputError(f"{name} has no rows; leave it out")
    used = [column for column in frame.columns if columns is None or column in columns]
    table = pd.DataFrame({column: _typed(frame[column], name) for column in used})
    table.attrs |= {"columns": list(frame.columns), "file": name}
    return table


def _typed(column: pd.Series, name: str) -> Any:
    """Turn a column into floats, or into text with None."""
    if column.dtype.kind in "biuf":
        return column.astype(float)
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    missing = column.isna()
    if pd.api.types.is_numeric_dtype(column.dtype) or all(isinstance(x, int | float | bool) for x in column[~missing]):
        return pd.to_numeric(column.astype(object).where(~missing, np.nan)).astype(float)
    if not all(isinstance(x, str) for x in column[~missing]):
        raise InputError(f"{name}: column {column.name} holds neither numbers nor text; give one of them")
    return pd.Series(np.where(missing, None, column.astype(object)), dtype=object)
