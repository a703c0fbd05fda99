"""Questions about small projects of data, a chart and a model, with answers that a program checks."""
