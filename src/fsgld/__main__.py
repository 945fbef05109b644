"""`python -m fsgld` is the command line."""

from fsgld.cli import main

if __name__ == "__main__":
    main()
