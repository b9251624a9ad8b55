"""A hook of mkdocs: pictures outside `docs` come into the site; other links that leave it lead to the repository.

One that leads nowhere is a warning, which ends a strict build. Without `repo_url` the words stand without a link.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(!?)\[([^\]]*)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
log = logging.getLogger("mkdocs.plugins.site_links")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with links that its place in the site can follow."""
    from mkdocs.structure.files import File

    folder, docs = Path(page.file.abs_src_path).parent, Path(config.docs_dir)

    def followed(match: re.Match[str]) -> str:
        is_picture, words, link, part = match.groups()
        target = (folder / link).resolve()
        if target.is_relative_to(docs):
            return match[0]
        if not target.exists():
            log.warning("%s links to %s, which is not there", page.file.src_path, link)
            return match[0]
        path = target.relative_to(docs.parent).as_posix()
        if is_picture:
            if files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(target)))
            above = "../" * len(Path(page.file.src_path).parent.parts)
            return f"![{words}]({above}{path})"
        return f"[{words}]({config.repo_url}/blob/HEAD/{path}{part or ''})" if config.repo_url else words

    return LINK.sub(followed, markdown)
