"""ftcore on Kubernetes.

| part | module |
|---|---|
| the job file, and its schema for the custom resource | ``job_file``, ``schema`` |
| manifests, from the job file alone | ``manifests``, ``pods``, ``etcd_manifests``, ``secrets`` |
| the API server: requests; list, watch and cache | ``config``, ``api``, ``informer`` |
| pods and nodes as reports to ftcore; places to fill | ``facts``, ``places`` |
| the platform ``k8s:`` in the master | ``adapter``, ``platform`` |
| the master's pod | ``master`` |
| ``ftctl k8s`` | ``commands``, ``submit`` |
| the operator | ``operator`` |

Kubernetes decides nothing here: it brings nodes, takes nodes and reports facts. ``ftcore`` does not know this package.
"""
