"""Support for a Ray cluster: the artifacts of a run, and the workers of slow environments."""
