"""Export of trained players: a separate folder, and its upload to a model hub."""
