"""Attacks on the sandbox: the corpus, the victim, the judge, and the runner."""
