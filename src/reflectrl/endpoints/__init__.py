"""Large language models around the small one: behind an OpenAI-compatible address, as teacher, contestant or reflector."""
