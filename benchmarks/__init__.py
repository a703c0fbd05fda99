"""Programs that print tables: reflectrl against a plain Hugging Face implementation, on the same model and text."""
