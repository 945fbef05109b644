"""Run another module as a program that ends when its parent dies: `python -m fsgld.watched MODULE ARGUMENTS`."""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time


def watch_parent() -> None:
    """End this process, whatever it does, when its parent has died."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch parent").start()


if __name__ == "__main__":
    watch_parent()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
