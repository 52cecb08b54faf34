"""The embedded default of ``rollout-serve --demo``: a real model, a real trainer, and a view of both."""
