"""The laws fitted to published tables or to a run on this machine, with their error on what was held out."""
