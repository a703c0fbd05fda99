"""What other programs, and people with a question, talk to."""
