"""Running on a cluster of Ray: the artifacts of a run, and the workers of slow environments."""
