"""A session in a repository: files are read, changed and tried out in an overlay, and never changed on disk."""
