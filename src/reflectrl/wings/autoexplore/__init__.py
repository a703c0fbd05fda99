"""AutoExplore: find the file of a repository that answers a question."""
