"""The paper's figures and tables, one module each: `fsgld reproduce NAME` runs it.

A module NAME has `Settings`, frozen, with `paper()` (as printed), `corrected()` (misprints and unstable steps put
right) and `quick(literal)` (either, in seconds); `run(settings, announce)`, which gives an outcome as data; and
`compare(literal, corrected)`, the lines of the table. NAME_plot has `draw(literal, corrected)`, its figures.
`reproduce` puts them together; `cases` are posteriors with known answers, for tests.
"""

EXPERIMENTS = {  # name: what it shows
    "variance": "Figure 1: gradient estimates for a coin tossed at three clients",
    "blobs": "Figures 2 and 3: ten clients that disagree about a mean",
    "bounds": "Figure 4: the constants and bounds of Theorems 1 and 2",
    "metric": "Figure 5 and Appendix F.2: a metric on spoken letters",
    "bnn": "Table 1: a Bayesian neural network on SUSY and Covertype",
    "regression": "Appendix F.1: linear regression on three data sets",
}
