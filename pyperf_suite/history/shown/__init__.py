"""Series for people and programs: lists and plots in the terminal, pictures, files for other tools."""
