"""Disks, file systems, object stores and checkpoint files."""

from ftcore.faults.rule import UNSURE, Rule
from ftcore.faults.taxonomy import FaultClass, Remedy

S = FaultClass.STORAGE

RULES: tuple[Rule, ...] = (
    Rule(
        name="disk-full",
        pattern=r"(?i)no space left on device|ENOSPC|disk quota exceeded|EDQUOT|low on resource: ephemeral-storage"
        r"|DiskPressure(?:\]|\s*[:=]?\s*True)"
        r"|quota exceeded.{0,40}(?:disk|storage|bytes)|disk (?:is )?full|file too large",
        cls=S,
        detail="full",
        weight=84,
        action=Remedy.STOP_AND_REPORT,
        node=False,
        reason="the disk or quota is full: free space first",
        example="OSError: [Errno 28] No space left on device: 'ckpt.pt'",
        live=True,
    ),
    Rule(
        name="disk-broken",
        pattern=r"I/O error, dev |Buffer I/O error|EXT4-fs error|EXT4-fs .{0,40}remount"
        r"|XFS .{0,60}(?:[Cc]orruption|[Ss]hut)"
        r"|nvme\S* .{0,60}(?:controller is down|I/O .{0,20}timeout|Device not ready)|ata\d+\S* .{0,30}failed command"
        r"|critical medium error|SMART .{0,30}(?:FAIL|fail)"
        r"|nvme\d+n\d+: I/O Cmd.{0,80}I/O Error",
        cls=S,
        detail="disk",
        weight=88,
        action=Remedy.REPLACE_NODE,
        node=True,
        reason="the kernel reports that a disk of this host is broken",
        example="blk_update_request: I/O error, dev nvme0n1, sector 12345",
        live=True,
    ),
    Rule(
        name="io-error",
        pattern=r"(?i)input/output error|\bEIO\b|stale (?:NFS )?file handle|ESTALE|read-only file system|EROFS"
        r"|transport endpoint (?:is not connected|(?:is )?shut)|remote I/O error"
        r"|Errno (?:5|70|107|108|112|116|121)\]"
        r"|no such device or address"
        r"|disk I/O error|\bHost is down|Errno 110\] Connection timed out: ['\"]/",
        cls=S,
        detail="io",
        weight=82,
        reason="the file system returned an I/O error",
        example="OSError: [Errno 5] Input/output error: '/app/run01'",
        live=True,
    ),
    Rule(
        name="file-system-away",
        pattern=r"(?i)nfs: server \S+ not responding|LustreError|Lustre: .{0,60}(?:lost|evict|timed out)"
        r"|\bmmfs(?:d64)?\b.{0,60}(?:error|fail|unmount|expel|panic)"
        r"|GPFS: .{0,40}(?:error|fail)|\bmmfs\w*: \[E\]"
        r"|ceph.{0,60}(?:hung|timed? ?out|failed)|task \S+ blocked for more than \d+ seconds"
        r"|beegfs.{0,40}(?:error|timed)"
        r"|mount\.\w+: .{0,60}(?:timed out|refused|failed)"
        r"|(?:juicefs|3fs|weka\w*|panfs|gluster\w*|cpfs"
        r"|rados)\b.{0,80}(?:error|failed|timed? ?out|unreachable|disconnected)",
        cls=S,
        detail="file-system",
        weight=76,
        reason="a network file system stalls or was disconnected",
        example="nfs: server filer01 not responding, still trying",
        live=True,
    ),
    Rule(
        name="checkpoint-messenger",
        pattern=r"CheckpointException",
        cls=S,
        detail="messenger",
        role=UNSURE,
        weight=39,
        reason="a distributed checkpoint failed on the ranks that it names; their own errors give the cause",
        example="torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3])",
    ),
    Rule(
        name="checkpoint-part",
        pattern=r"(?i)mmap length is greater than file size|unexpected pos \d+ vs|storage has wrong (?:byte )?size"
        r"|truncated file|file signature not found|invalid magic number|checkpoints? (?:paths?|files?"
        r"|shards?) (?:are|is) "
        r"missing|missing (?:checkpoint )?shards?\b",
        cls=S,
        detail="checkpoint-file",
        weight=81,
        action=Remedy.STOP_AND_REPORT,
        node=False,
        reason="a file is truncated or missing: reading it again fails in the same way",
        example="RuntimeError: [enforce fail at inline_container.cc:668] . unexpected pos 704 vs 598",
        live=True,
    ),
    Rule(
        name="checkpoint-file",
        pattern=r"(?i)PytorchStream(?:Reader|Writer) failed|failed finding central directory|archive is corrupted"
        r"|invalid header or archive"
        r"|unexpected EOF|Ran out of input|SafetensorError|MetadataIncompleteBuffer|InvalidHeader"
        r"|HeaderTooLarge|InvalidHeaderDeserialization"
        r"|(?:checkpoint|ckpt|shard|file).{0,60}\b(?:corrupt|truncated|incomplete|damaged)"
        r"|unpickling(?:error)?\b.{0,40}(?:truncated|invalid load key)"
        r"|(?:unable|failed) to (?:open|read) file .{0,60}truncated|BadZipFile|tarfile\.ReadError"
        r"|EOFError|UnpicklingError|zlib\.error|ArrowInvalid|(?:failed|error|unable)\w* (?:to |while "
        r"|in )?(?:sav|writ)(?:e|ing)\w* .{0,20}(?:checkpoint|ckpt|file)"
        r"|short write|write failed|checksum mismatch"
        r"|crc.{0,10} mismatch",
        cls=S,
        detail="checkpoint-file",
        weight=81,
        action=Remedy.STOP_AND_REPORT,
        node=False,
        reason="a file is corrupt or incomplete: reading it again fails in the same way; use an older one",
        example="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        live=True,
    ),
    Rule(
        name="object-store",
        pattern=r"(?i)botocore\.exceptions|s3\S*.{0,60}(?:SlowDown|ServiceUnavailable|InternalError|timed? ?out"
        r"|RequestTimeout)"
        r"|google\.api_core\.exceptions|azure\.core\.exceptions|BlobNotFound|gcsfs.{0,40}(?:error|retry)"
        r"|NoSuch(?:Bucket|Key)\b"
        r"|hdfs.{0,60}(?:exception|failed)|OSS.{0,40}(?:ServerError|RequestError)"
        r"|FSTimeoutError",
        cls=S,
        detail="object-store",
        weight=78,
        reason="the object store refused the request or was not reached",
        example="botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL",
        live=True,
    ),
)
