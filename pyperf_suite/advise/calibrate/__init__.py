"""The laws fitted to published tables or to a run on this machine, with the error that they make on what was held out."""
