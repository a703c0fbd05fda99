"""Locate files for a question: the agent, the search, and the MCP server around them."""
