"""How soon a published version is live, and how long it pauses, beside what a user would do today.

python -m sync.bench [--json] [--case NAME] [--rounds N]
"""
