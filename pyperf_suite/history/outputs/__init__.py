"""Findings in the forms that people and other programs read: terminal, JSON, Markdown, JUnit XML, an exit code."""
