"""Running a recipe of a text task: samples, reference, its value, every arm, what they write, the table."""
