"""The used messages of etcd's v3 API, in a private descriptor pool.

Source: the public API reference of etcd (``rpc.proto``, ``kv.proto``). Unused messages and fields are left out:
protobuf skips unknown fields.

A field is ``[repeated] type name number [oneof]``. Enumerations are declared as ``int32``, which is the same on the
wire; ``messages`` names their values. The pool is private because two libraries that both declare ``mvccpb.KeyValue``
in the default pool conflict. No code is generated, so protobuf's version check of generated code does not apply.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "etcdserverpb"

_MESSAGES = {
    "ResponseHeader": "int64 revision 3",
    "KeyValue": """
        bytes key 1; int64 create_revision 2; int64 mod_revision 3; bytes value 5; int64 lease 6""",
    "Event": "int32 type 1; KeyValue kv 2",
    "RangeRequest": """
        bytes key 1; bytes range_end 2; int64 limit 3; int64 revision 4; int32 sort_order 5; bool keys_only 8""",
    "RangeResponse": "ResponseHeader header 1; repeated KeyValue kvs 2; bool more 3",
    "PutRequest": "bytes key 1; bytes value 2; int64 lease 3",
    "PutResponse": "ResponseHeader header 1",
    "DeleteRangeRequest": "bytes key 1; bytes range_end 2",
    "DeleteRangeResponse": "ResponseHeader header 1; int64 deleted 2",
    "Compare": """
        int32 result 1; int32 target 2; bytes key 3; int64 version 4 target_union; int64 create_revision 5 target_union;
        int64 mod_revision 6 target_union; bytes value 7 target_union; int64 lease 8 target_union""",
    "RequestOp": """
        RangeRequest request_range 1 request; PutRequest request_put 2 request;
        DeleteRangeRequest request_delete_range 3 request""",
    "ResponseOp": """
        RangeResponse response_range 1 response; PutResponse response_put 2 response;
        DeleteRangeResponse response_delete_range 3 response""",
    "TxnRequest": "repeated Compare compare 1; repeated RequestOp success 2; repeated RequestOp failure 3",
    "TxnResponse": "ResponseHeader header 1; bool succeeded 2; repeated ResponseOp responses 3",
    "CompactionRequest": "int64 revision 1; bool physical 2",
    "CompactionResponse": "ResponseHeader header 1",
    "WatchCreateRequest": """
        bytes key 1; bytes range_end 2; int64 start_revision 3; repeated int32 filters 5""",
    "WatchRequest": "WatchCreateRequest create_request 1 request_union",
    "WatchResponse": """
        ResponseHeader header 1; int64 watch_id 2; bool created 3; bool canceled 4; int64 compact_revision 5;
        string cancel_reason 6; repeated Event events 11""",
    "LeaseGrantRequest": "int64 TTL 1; int64 ID 2",
    "LeaseGrantResponse": "ResponseHeader header 1; int64 ID 2; int64 TTL 3; string error 4",
    "LeaseRevokeRequest": "int64 ID 1",
    "LeaseRevokeResponse": "ResponseHeader header 1",
    "LeaseKeepAliveRequest": "int64 ID 1",
    "LeaseKeepAliveResponse": "ResponseHeader header 1; int64 ID 2; int64 TTL 3",
    "AlarmRequest": "int32 action 1; uint64 memberID 2; int32 alarm 3",
    "AlarmMember": "uint64 memberID 1; int32 alarm 2",
    "AlarmResponse": "ResponseHeader header 1; repeated AlarmMember alarms 2",
    "StatusRequest": "",
    "StatusResponse": """
        ResponseHeader header 1; string version 2; int64 dbSize 3; int64 dbSizeQuota 12""",
    "AuthenticateRequest": "string name 1; string password 2",
    "AuthenticateResponse": "ResponseHeader header 1; string token 2",
}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint64": _Field.TYPE_UINT64,
}


def _declare(file: descriptor_pb2.FileDescriptorProto, name: str, fields: str) -> None:
    message = file.message_type.add(name=name)
    unions: dict[str, int] = {}
    for line in filter(None, (part.split() for part in fields.split(";"))):
        repeated = line[0] == "repeated"
        kind, field_name, number, *union = line[repeated:]
        field = message.field.add(name=field_name, number=int(number))
        field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            assert kind in _MESSAGES, f"{name}.{field_name} has the unknown type {kind}"
            field.type = _Field.TYPE_MESSAGE
            field.type_name = f".{_PACKAGE}.{kind}"
        if union:
            if union[0] not in unions:
                unions[union[0]] = len(unions)
                message.oneof_decl.add(name=union[0])
            field.oneof_index = unions[union[0]]


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="ftcore/etcd.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        _declare(file, name, fields)
    pool = descriptor_pool.DescriptorPool()
    # As bytes: the other ways to add a file differ between protobuf 5 and 7.
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_classes = _build()


def message(name: str) -> Any:
    """The message class of a name; typed as ``Any`` because it is created at run time."""
    return _classes[name]
