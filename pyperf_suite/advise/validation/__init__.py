"""The laws held against what this machine measured."""
