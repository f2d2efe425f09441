def is_sacct(head): return False
def is_slurm_log(name, head): return False
