"""What XLA's CPU compiler is told on `import fsgld`, before JAX starts.

- LLVM unrolls short loops whole and then copies rows number by number; not unrolled, they are copied in vectors.
- XLA runs a loop kernel by kernel unless its data are tiny (1 kB); a loop of up to 4 MB becomes one kernel, unless
  it needs a library for matrix products.

benchmarks/README.md has the times. These settings hold for every program of the process, so nothing is set where the
user has settings of this kind or keeps settings in a file, where this jaxlib does not know them (it would stop the
process), where JAX has a plugin for another device (its compiler would read them, too) unless JAX_PLATFORMS=cpu, where
JAX has started already, or where FSGLD_XLA_FLAGS=off. Processes that are started later inherit them. Linux only.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path

FLAG = "xla_backend_extra_options"
OPTIONS = {"-unroll-full-max-count": 8, "xla_cpu_small_while_loop_byte_threshold": 2**22}


def set_flags(environ: MutableMapping[str, str] = os.environ) -> None:
    """Add the options to XLA_FLAGS, where that is wanted, has an effect and does no harm."""
    given = environ.get("XLA_FLAGS", "").strip()
    theirs = FLAG in given or (given and not given.startswith("--"))  # else a file's name
    elsewhere = find_spec("jax_plugins") is not None and environ.get("JAX_PLATFORMS") != "cpu"
    if theirs or elsewhere or environ.get("FSGLD_XLA_FLAGS") == "off" or started() or not known([FLAG, *OPTIONS]):
        return
    options = ",".join(f"{name}={value}" for name, value in OPTIONS.items())
    environ["XLA_FLAGS"] = f"{given} --{FLAG}={options}".strip()


def started() -> bool:
    """Whether JAX has read its flags."""
    ask = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    return bool(ask and ask())


def known(names: list[str]) -> bool:
    """Whether the installed jaxlib has heard of all of these options: whether their names are in its library."""
    spec = find_spec("jaxlib")
    library = Path(spec.origin).with_name("libjax_common.so") if spec and spec.origin else None
    if library is None or not library.is_file():
        return False
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return all(content.find(name.lstrip("-").encode()) >= 0 for name in names)
