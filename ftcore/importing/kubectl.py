def is_events(head): return False
