"""Diagnosis of faults: the taxonomy, classification of single reports, correlation of several."""
