"""Render findings as text, tables, pictures and a page: the only place where numbers become words."""
