"""Numbered migrations; what has been released is never edited, only followed by the next number."""
