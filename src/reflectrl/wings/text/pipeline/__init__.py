"""Pipeline of a text task: samples, reference, its value, every arm, their completions, and the result table."""
