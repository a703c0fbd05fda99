"""Tools for authors of environments: check an environment, measure its speed, begin a project."""
