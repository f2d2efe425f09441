"""ftcore on Slurm.

| part | module | found by ftcore as |
|---|---|---|
| flags of ``ftrun`` inside ``srun`` | ``environment`` | entry point of ``ftcore.launchers`` |
| ``ftctl slurm script``, ``ftctl slurm run`` | ``commands``, ``script``, ``run``, ``member`` | of ``ftcore.commands`` |
| nodes that Slurm takes away; launches, drains | ``adapter``, ``platform``, ``control`` | of ``ftcore.platforms`` |

Slurm decides nothing here: it brings nodes, takes nodes and reports facts. ``ftcore`` does not know this package.
"""
