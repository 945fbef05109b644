"""The limit: a C loop of the same update (`benchmarks/c`), compiled on the spot and called through ctypes."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).parent.parent / "c"
FLAGS = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]


def c_loop(w):
    """One chain of FSGLD in C."""
    chain, rows = compiled(w.name).chain, table(w)
    shift, precision, init = (np.ascontiguousarray(a, np.float32) for a in (w.shift, w.precision, w.flat_init))
    sizes, h, seed = (w.num_clients, w.num_rows), ctypes.c_float(w.step_size), ctypes.c_uint64(1)

    def run(rounds):
        draws = np.empty((rounds, init.size), np.float32)
        q = pointer(shift), pointer(precision)
        chain(pointer(rows), *sizes, *q, pointer(init), h, rounds, seed, pointer(draws))
        return draws

    return run


def c_gradient(w, theta):
    """The likelihood gradient of the first mini-batch of client 0, to check the C code by."""
    rows, out = table(w), np.empty_like(theta)
    compiled(w.name).batch_gradient(pointer(rows), pointer(theta), pointer(out))
    return out


def compiled(name):
    """The shared object of one workload, built by the system's compiler."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "cc",
            *FLAGS,
            f'-DMODEL="{name.lower()}.h"',
            str(SOURCE / "chain.c"),
            "-o",
            f"{folder}/chain.so",
        ]
        subprocess.run([*command, "-lmvec", "-lm"], check=True)
        return ctypes.CDLL(f"{folder}/chain.so")


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def table(w):
    """All rows as one array of floats in the layout that the workload's C header states, on a cache line's boundary."""
    columns = LAYOUT[w.name](w.data)
    shape = w.num_clients * w.num_rows, sum(width for width, _ in columns)
    out, start = aligned_zeros(shape), 0
    for width, values in columns:
        values = values.reshape(shape[0], -1)
        out[:, start : start + values.shape[1]] = values
        start += width
    return out


def aligned_zeros(shape):
    buffer = np.zeros(np.prod(shape) + 16, np.float32)
    start = -(buffer.ctypes.data // 4) % 16
    return buffer[start : start + np.prod(shape)].reshape(shape)


def _signed(data):
    z, y = data
    return -y[..., None] * np.concatenate([z, -np.ones_like(z[..., :1])], axis=-1)


LAYOUT = {  # the columns of a row: (floats, values)
    "W1": lambda x: [(2, x)],
    "W2": lambda xy: [(81, xy[0]), (15, xy[1])],
    "W3": lambda zy: [(64, _signed(zy))],
    "W4": lambda xy: [(18, xy[0]), (1, np.ones_like(xy[1])), (1, xy[1])],
}
