"""Stores, rendezvous, gloo and plain sockets.

The store runs on the first node: a connection that breaks means that the store has ended; a connection that never
succeeded means that the path to it is wrong.
"""

from ftcore.faults.rule import COLLATERAL, UNSURE, Rule
from ftcore.faults.taxonomy import FaultClass, Remedy

N, X, T, E = FaultClass.NETWORK_RENDEZVOUS, FaultClass.COLLATERAL, FaultClass.NCCL_TIMEOUT, FaultClass.CONFIG_ENV

RULES: tuple[Rule, ...] = (
    Rule(
        name="ras-port",
        pattern=r"ras/client_support\.cc.{0,120}in use",
        cls=FaultClass.UNKNOWN,
        weight=0,
        reason="the port of NCCL's RAS service is in use; harmless",
        example="ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already in use",
    ),
    Rule(
        name="port-taken",
        pattern=r"(?i)address already in use|EADDRINUSE|port \d+ (?:is )?(?:already )?in use",
        cls=E,
        detail="port-taken",
        weight=84,
        reason="another process uses the port: an earlier run, or another job",
        example="RuntimeError: The server socket has failed to listen on any local network address. errno: 98 - "
        "Address already in use",
    ),
    Rule(
        name="barrier-failed",
        pattern=r"[Rr]anks? [\d, ]+ failed to pass monitoredBarrier"
        r"|timed out in monitoredBarrier",
        cls=T,
        detail="barrier",
        role=UNSURE,
        weight=53,
        reason="the monitored barrier names the ranks that did not arrive",
        example="RuntimeError: Ranks 1, 2 failed to pass monitoredBarrier in 30000 ms",
    ),
    Rule(
        name="barrier-victim",
        pattern=r"reached monitoredBarrier, but received errors",
        cls=X,
        detail="peer-gone",
        role=COLLATERAL,
        weight=22,
        reason="this rank arrived at the barrier; the rank that it names did not",
        example="RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting "
        "for send/recv from rank 0.",
    ),
    Rule(
        name="store-gone",
        pattern=r"\"?should ?dump\"? flag|recvValue(?:WithTimeout)? failed|sendBytes failed|recvVector failed"
        r"|recvBytes failed"
        r"|TCPStore.{0,80}(?:[Bb]roken pipe|reset by peer|[Cc]onnection (?:was )?(?:closed|lost))"
        r"|(?i:failed to recv, got 0 bytes)",
        cls=X,
        detail="store-gone",
        role=COLLATERAL,
        weight=20,
        reason="the store ended with the first node's process",
        example='Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early)',
    ),
    Rule(
        name="peer-gone",
        pattern=r"(?i)connection (?:was )?(?:closed|reset|aborted) by (?:remote )?peer|broken pipe"
        r"|ConnectionResetError"
        r"|\bpeer (?:has )?(?:exited|disconnected)|Socket closed|EOFError: connection",
        cls=X,
        detail="peer-gone",
        role=COLLATERAL,
        weight=20,
        reason="the peer closed the connection: it ended first",
        example="RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:52710",
    ),
    Rule(
        name="peer-silent",
        pattern=r"(?i)application timeout caused pair closure|timed out waiting \d+ ?ms for (?:recv|send)",
        cls=X,
        detail="peer-silent",
        role=COLLATERAL,
        weight=23,
        reason="gloo timed out waiting for another rank",
        example="RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    ),
    Rule(
        name="network-check",
        pattern=r"node network is breakdown|network check (?:has )?failed",
        cls=N,
        detail="network-check",
        weight=64,
        action=Remedy.REPLACE_NODE,
        node=True,
        reason="a check between nodes reports that this node's network is broken",
        example="RuntimeError: The node network is breakdown.",
    ),
    Rule(
        name="rendezvous-unreachable",
        pattern=r"RendezvousConnectionError|connection to the C10d store has failed",
        cls=N,
        detail="unreachable",
        role=UNSURE,
        weight=42,
        action=Remedy.STOP_AND_REPORT,
        reason="the first connection failed: address, port, interface or firewall; a retry fails in the same way",
        example="RendezvousConnectionError: The connection to the C10d store has failed. See inner exception "
        "for details.",
    ),
    Rule(
        name="rendezvous",
        pattern=r"Rendezvous(?:Timeout|Closed|GracefulExit|State)?Error|rendezvous.{0,60}(?:timed out|timeout"
        r"|closed|fail)"
        r"|node\S* (?:has )?(?:failed to|did not) join .{0,30}rendezvous|[Tt]imed? ?out .{0,60}rendezvous"
        r"|keep-alive heartbeat|rendezvous .{0,60}(?:not |un)(?:ready|available|completed|reachable)"
        r"|[Tt]imed? ?out .{0,40}(?:wait\w* .{0,40}nodes|nodes .{0,20}join)",
        cls=N,
        detail="rendezvous",
        role=UNSURE,
        weight=42,
        reason="too few nodes joined in time, or the rendezvous was closed",
        example="torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ),
    Rule(
        name="store-clients",
        pattern=r"DistStoreError|waiting for clients|store based barrier|\d+/\d+ clients joined",
        cls=N,
        detail="ranks-missing",
        role=UNSURE,
        weight=43,
        reason="the store counts the ranks that connected: some never did",
        example="torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 6/8 clients "
        "joined.",
    ),
    Rule(
        name="store-timeout",
        pattern=r"(?i)DistNetworkError|client socket has (?:timed out|failed)|wait timeout after \d+ ?ms"
        r"|TCPStore.{0,60}tim(?:ed|e) ?out"
        r"|store.{0,40}timed? ?out|failed to connect to .{0,40}(?:store|master)|Timed out .{0,40}(?:store"
        r"|init_process_group)"
        r"|Socket Timeout|etcd.{0,60}(?:timed out|connection (?:failed|refused)|unavailable)"
        r"|connect\(\) timed out|connectFullMesh|EtcdConnectionFailed|EtcdException|EtcdWatchTimedOut"
        r"|Stop_waiting response is expected|fail(?:ed)? to (?:connect|report|register|talk) .{0,40}"
        r"(?:job master|master|coordinator)\b",
        cls=N,
        detail="store-timeout",
        role=UNSURE,
        weight=41,
        reason="the store did not answer: its host is down, or its port is closed or belongs to another job",
        example="torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying "
        "to connect to (h, 29500)",
    ),
    Rule(
        name="others-ended",
        pattern=r"(?i:(?:another|other|some|a remote|peer) (?:rank|process|worker|node)s? (?:has |have |was |were )?"
        r"(?:failed|died|exited|crashed|been killed|killed|terminated|disconnected))|\bpeer \S{1,60} (?:has )?closed"
        r"|(?:^|[^\]])\b[Rr]ank \d+ (?:has )?(?:failed|died|crashed)\b|peer agent failed"
        r"|(?i:(?:comm|communicator|process group) (?:was |has been |is )?aborted)"
        r"|(?i:(?:due to|because of|caused by) (?:a |an |the )?(?:failure|error|exit|crash|exception)\w* (?:of|in|on)"
        r" (?:one of the |another|other|a peer|rank \d+))"
        r"|(?i:(?:exit\w*|shut\w* down|stop\w*|abort\w*) (?:because|since|as) .{0,20}(?:another|other|peer"
        r"|(?:rank|node) \d))|trainer process with rank=\[\d+\] was aborted",
        cls=X,
        detail="peer-gone",
        role=COLLATERAL,
        weight=24,
        reason="the line reports that another process ended",
        example="RuntimeError: another rank has failed; shutting down",
    ),
    Rule(
        name="framework-ended",
        pattern=r"(?:Actor|Worker)\w*DiedError|RayActorError|WorkerCrashedError|\w+ (?:has )?died unexpectedly"
        r"|[Rr]eceived sigquit from a child|See root cause above|Engine(?:Core)?Dead\w*"
        r"|Background loop (?:has errored|is stopped)|Horovod has been shut down|HorovodInternalError"
        r"|JAX distributed service detected fatal errors",
        cls=X,
        detail="peer-gone",
        role=COLLATERAL,
        weight=24,
        reason="a framework ends because one of its other processes did",
        example="ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
    ),
    Rule(
        name="task-unhealthy",
        pattern=r"stopped sending heartbeats|Polled an error from coordination service|from this or another task",
        cls=X,
        detail="peer-gone",
        role=COLLATERAL,
        weight=22,
        reason="the coordination service reports that another task has ended",
        example="UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/task:5",
    ),
    Rule(
        name="task-barrier",
        pattern=r"DEADLINE_EXCEEDED.{0,20} Barrier|Barrier timed out|[Cc]oordination service.{0,60}(?:timed out"
        r"|not reach)",
        cls=N,
        detail="ranks-missing",
        role=UNSURE,
        weight=43,
        reason="the coordination service timed out waiting for tasks",
        example="DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect.",
    ),
    Rule(
        name="group-restarts",
        pattern=r"(?i)membership change|restart\w* (?:of )?(?:the )?worker ?group|stop(?:ping)? (?:all )?"
        r"(?:the )?workers? .{0,30}(?:restart|rendezvous)",
        cls=X,
        detail="re-rendezvous",
        role=COLLATERAL,
        weight=5,
        reason="an agent stops its workers because the membership changes: a node joined or left",
        example="[default] Detected 1 new nodes; restarting worker group: membership change",
    ),
    Rule(
        name="mpi-aborts",
        pattern=r"Per user-direction, the job has been aborted|Primary job +terminated normally, but"
        r"|MPI_ABORT was invoked|mpirun detected that one or more processes exited with non-zero",
        cls=X,
        detail="peer-gone",
        role=COLLATERAL,
        weight=13,
        reason="mpirun ends the other processes after one has ended",
        example="a non-zero exit code. Per user-direction, the job has been aborted.",
    ),
    Rule(
        name="service",
        pattern=r"[Cc]ouldn't (?:connect to|reach) '?(?:http|the [Hh]ub)|CommError|Connection error, and we cannot find"
        r"|RemoteDisconnected|[Ss]erver ?[Dd]isconnected|ChunkedEncodingError|IncompleteRead|Read timed out"
        r"|wandb.{0,40}communicating with|(?:Connect|Read|Pool)Timeout\b"
        r"|\bTimeoutError: (?:timed out|The \w+ operation timed out)|\bsocket\.timeout",
        cls=N,
        detail="service",
        role=UNSURE,
        weight=62,
        reason="a service on the network was not reached, as reported by a client library",
        example="wandb.errors.CommError: Run initialization has timed out after 90.0 sec.",
    ),
    Rule(
        name="download",
        pattern=r"HTTPS?ConnectionPool|Max retries exceeded|requests\.exceptions|urllib3?\.\w*|URLError|SSLError"
        r"|ProxyError|ClientConnectorError"
        r"|StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED)|LocalEntryNotFoundError|ReadTimeoutError"
        r"|OfflineModeIsEnabled|50[0234] Server Error",
        cls=N,
        detail="service",
        role=UNSURE,
        weight=63,
        reason="a service on the network was not reached",
        example="requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): Max retries exceeded",
    ),
    Rule(
        name="name-resolution",
        pattern=r"(?i)name or service not known|temporary failure in name resolution|getaddrinfo"
        r"|nodename nor servname"
        r"|could not resolve host|unable to resolve host|gai error",
        cls=N,
        detail="name-resolution",
        role=UNSURE,
        weight=46,
        reason="a host name could not be resolved",
        example="socket.gaierror: [Errno -3] Temporary failure in name resolution",
    ),
    Rule(
        name="address",
        pattern=r"Unable to find address for|(?:ifa|rp) != nullptr|Unable to resolve hostname",
        cls=N,
        detail="address",
        role=UNSURE,
        weight=62,
        action=Remedy.STOP_AND_REPORT,
        reason="this host finds no address for its own name or interface; a retry fails in the same way",
        example="RuntimeError: [gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth0",
    ),
    Rule(
        name="controller",
        pattern=r"[Uu]nable to contact slurm controller|Socket timed out on send/recv operation"
        r"|[Uu]nable to connect to the server: ",
        cls=N,
        detail="controller",
        role=UNSURE,
        weight=33,
        action=Remedy.WAIT,
        reason="the scheduler's controller does not answer; running jobs continue",
        example="srun: error: Unable to contact slurm controller (connect failure)",
    ),
    Rule(
        name="no-route",
        pattern=r"(?i)no route to host|network is unreachable|connection refused|connection timed out"
        r"|ConnectionRefusedError"
        r"|failed to connect to remote host|ssh: connect to host"
        r"|failed to connect to (?:the )?(?:tcp server|scheduler|coordinator|gcs|head node|all addresses)"
        r"|could not connect to GCS|could not find any running ray|NoValidConnectionsError|StoreConnectError"
        r"|code = (?:DeadlineExceeded|Unavailable)\b",
        cls=N,
        detail="unreachable",
        role=UNSURE,
        weight=38,
        reason="no process answers at that address",
        example="ConnectionRefusedError: [Errno 111] Connection refused",
    ),
)
