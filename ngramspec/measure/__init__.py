"""What the measuring commands need: replay, whole calls, alpha, explanations, figures."""
