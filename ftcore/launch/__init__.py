"""Composing a process from parts: an agent of a node, a platform of local nodes, a candidate for the master role.

| module | composes or gives |
|---|---|
| ``node`` | the agent of one node: log, supervisor, candidates, signals, the job's story |
| ``local`` | the agents of N nodes on one machine and their platform |
| ``candidates``, ``master`` | starting a candidate as a process; the inside of that process |
| ``job``, ``policy_file``, ``plugins`` | what a job is submitted with: time constants, policies, rules |
| ``paths``, ``address``, ``security`` | where files and sockets lie, how others reach this host, what callers show |
| ``narrator``, ``hints`` | the job's story on the terminal; ``ftctl`` commands that run as they are printed |
| ``process``, ``environ``, ``lean`` | how such a process begins and ends, and what it imports |

House rules: command lines are parsed above (``cli/``, ``rdzv_etcd/``); here values arrive. A user's mistake is a
``UsageError``. No torch is imported.
"""
