"""Models as their makers publish them: config.json of many families read into dimensions."""
