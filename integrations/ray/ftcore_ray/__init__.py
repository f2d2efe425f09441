"""ftcore on Ray: each node of a job is an actor that runs ``ftrun``, and a new actor replaces a lost one.

``launch`` starts a job and waits for its end. The *controller* is a detached actor that starts the nodes' actors and
sees them end; the platform ``ray:`` asks it. Importing this package does not import ray.
"""

from ftcore_ray.launch import RayJob, launch, start, wait

__all__ = ["RayJob", "launch", "start", "wait"]
