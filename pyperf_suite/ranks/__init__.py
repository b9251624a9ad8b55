"""The processes of a distributed run: who they are, how they agree, and how those that do not answer are named."""
