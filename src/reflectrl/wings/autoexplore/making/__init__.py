"""Make a library: repositories from packages and folders, and questions about their files."""
