"""What the evidence means: the taxonomy, classification of single reports, correlation of many."""
