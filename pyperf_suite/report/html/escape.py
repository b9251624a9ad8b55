"""Strings of others made harmless where they go: HTML text and attributes, and JSON within a page.

Names come from records that a stranger may have written; what turns the direction of writing is replaced as well.
"""

from __future__ import annotations

import html
import json
import math
from typing import Any

from pyperf_suite.printable import printable


def text(said: object) -> str:
    """As text between tags or within a quoted attribute.

    >>> text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(printable(str(said)), quote=True)


def json_island(data: Any) -> str:
    r"""JSON that no HTML parser can end early: without `<`, `>` and `&`, in ASCII; numbers to six digits.

    >>> json_island({"name": "</script>", "y": [1 / 3, float("nan")]})
    '{"name":"\\u003c/script\\u003e","y":[0.333333,null]}'
    """
    plain = json.dumps(_plain(data), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
