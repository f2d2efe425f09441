"""Composing a process from parts: an agent of a node, a platform of local nodes, a candidate for the master role.

| module | content |
|---|---|
| ``node`` | the agent of one node: log, supervisor, candidates, signals, narration |
| ``local`` | the agents of N nodes on one machine and their platform |
| ``candidates``, ``master`` | starting a candidate as a process; the main function of that process |
| ``job``, ``policy_file``, ``plugins`` | the submission of a job: time constants, policies, rules |
| ``paths``, ``address``, ``security`` | files and sockets, the address of this host, credentials |
| ``note`` | a person's note in the log of a running or ended job |
| ``narrator``, ``hints`` | progress of the job on the terminal; completing ``ftctl`` commands in messages |
| ``process``, ``environ``, ``lean`` | start and end of a process, its environment and imports |

House rules: command lines are parsed above (``cli/``, ``rdzv_etcd/``). A user error is a ``UsageError``. No torch is
imported.
"""
