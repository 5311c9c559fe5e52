"""Bundles of evidence: everything that the tables hold about one message, as one file that anybody can check offline
(docs/evidence-bundle.md)."""
