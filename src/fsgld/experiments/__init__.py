"""One module per figure or table of the paper; each runs with `python -m fsgld.experiments.NAME`."""
