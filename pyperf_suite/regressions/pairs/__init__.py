"""Old against new in live pairs: builds of revisions, the two sides, the turns that they take."""
