"""The messages that expressions can name: protobuf's well-known types, with the types of their fields.

Kubernetes registers no messages of its own, but cel-go always knows these. In the checker most of them are
other types under a protobuf name: wrappers are primitives that may be null, `Struct` is a map, `ListValue` a
list, `Value` and `Any` are dynamic. So a field is looked up by what a message is in CEL, not by its name.
Source: the CEL language definition, "Protocol Buffer Data Conversion", and cel-go 0.29.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubernetes_cel import types
from kubernetes_cel.types import Type

_JSON = types.map_of(types.string, types.dyn)

#: Types by the name of the message.
TYPES: Mapping[str, Type] = {
    "google.protobuf.Any": types.any_,
    "google.protobuf.BoolValue": types.wrapper_of(types.bool_),
    "google.protobuf.BytesValue": types.wrapper_of(types.bytes_),
    "google.protobuf.DoubleValue": types.wrapper_of(types.double),
    "google.protobuf.Duration": types.duration,
    "google.protobuf.Empty": types.struct("google.protobuf.Empty"),
    "google.protobuf.FloatValue": types.wrapper_of(types.double),
    "google.protobuf.Int32Value": types.wrapper_of(types.int_),
    "google.protobuf.Int64Value": types.wrapper_of(types.int_),
    "google.protobuf.ListValue": types.list_dyn,
    "google.protobuf.StringValue": types.wrapper_of(types.string),
    "google.protobuf.Struct": _JSON,
    "google.protobuf.Timestamp": types.timestamp,
    "google.protobuf.UInt32Value": types.wrapper_of(types.uint),
    "google.protobuf.UInt64Value": types.wrapper_of(types.uint),
    "google.protobuf.Value": types.dyn,
}

#: The one enum value there is: the int 0.
NULL = "google.protobuf.NullValue.NULL_VALUE"

_SPAN = {"seconds": types.int_, "nanos": types.int_}
_FIELDS: Mapping[str, Mapping[str, Type]] = {
    types.ANY: {"type_url": types.string, "value": types.bytes_},
    types.BOOL: {"value": types.bool_},
    types.BYTES: {"value": types.bytes_},
    types.DOUBLE: {"value": types.double},
    types.DURATION: _SPAN,
    types.DYN: {
        "null_value": types.int_,
        "number_value": types.double,
        "string_value": types.string,
        "bool_value": types.bool_,
        "struct_value": _JSON,
        "list_value": types.list_dyn,
    },
    types.INT: {"value": types.int_},
    types.LIST: {"values": types.list_dyn},
    types.MAP: {"fields": _JSON},
    types.STRING: {"value": types.string},
    types.STRUCT: {},
    types.TIMESTAMP: _SPAN,
    types.UINT: {"value": types.uint},
}


def fields(message: Type) -> Mapping[str, Type]:
    """The fields of a message, one of the values of `TYPES`."""
    return _FIELDS[message.kind]
