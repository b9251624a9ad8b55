"""Plotly's script as it stands in the page: compressed, for it is nine tenths of the page otherwise."""

from __future__ import annotations

import base64
import gzip

from pyperf_suite.errors import UserError


def packed_script() -> str:
    """plotly.min.js as base64 of gzip, the same bytes each time. Raises UserError where plotly is not installed."""
    from importlib import resources

    try:
        script = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise UserError("The report's figures need plotly, which is not installed: pip install plotly.") from None
    return base64.b64encode(gzip.compress(script, 6, mtime=0)).decode("ascii")
