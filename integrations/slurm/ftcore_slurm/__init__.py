"""ftcore on Slurm.

| part | module | found by ftcore as |
|---|---|---|
| flags of ``ftrun`` inside ``srun`` | ``environment`` | entry point of ``ftcore.launchers`` |
| ``ftctl slurm script`` | ``commands``, ``script`` | of ``ftcore.commands`` |
| ``ftctl slurm run``, which it runs | ``run``, ``ending``, ``deputy``, ``drains``, ``member`` | the same |
| nodes that Slurm takes; agents started anew | ``adapter``, ``platform`` | of ``ftcore.platforms`` |
| Slurm's own commands, for all of them | ``control`` | |

Slurm decides nothing here: it brings nodes, takes nodes and reports facts. ``ftcore`` does not know this package.
"""
