"""Several runs: forks that reuse another run's artifacts, grids of runs, and a page that compares runs."""
