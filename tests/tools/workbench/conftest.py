"""Projects of earlier versions are copied by a test, and not collected."""

collect_ignore = ["old_projects"]
