"""One module a contender; `everyone.py` lists them. Importing fsgld's alone does not load PyTorch."""
