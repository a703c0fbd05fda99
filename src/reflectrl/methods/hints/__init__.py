"""Texts in hindsight, hints that come after the fact: their settings, their loss, and the episodes they come with."""
