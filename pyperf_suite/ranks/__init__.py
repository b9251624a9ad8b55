"""The processes of a distributed run: who they are, how they agree, and how those that do not answer are named.

Transport is torch's c10d store alone; no collective that is measured is needed to agree on anything.
"""
