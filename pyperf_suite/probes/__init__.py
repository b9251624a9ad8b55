"""One file a probe: what varies, which law explains it, what to tell the user. Found by being here, with a PROBE."""
